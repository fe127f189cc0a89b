// Trial of decode kernels: GB/s over 256 MB of weights, and over 768 KB that stay in the second cache, beside a plain read.
// Tables of AVX-512 (vpermb) lost; what was kept is in src/shohin/kernels/linear. Figures: LOG.md, 2026-12-01.
// g++ -O3 -march=native -std=c++20 -DCC=2 -DPF=8192 decode_kernels.cpp -o trial -lpthread && ./trial THREADS
#include <immintrin.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <vector>
#include <thread>
using clk = std::chrono::steady_clock;
static uint8_t* W; static size_t BYTES = 256u<<20;
static int8_t Q[16384]; static float AS[256]; static int32_t QS[256];
alignas(64) static uint8_t TAB[16384*16]; // vpermb tables
alignas(64) static float OUT[1<<20];
#ifndef PF
#define PF 4096
#endif
static float sink;
// plain read
static void k_read(const uint8_t* p, size_t n, int) {
  __m512i a=_mm512_setzero_si512(),b=a,c=a,d=a;
  for(size_t i=0;i<n;i+=256){a=_mm512_xor_si512(a,_mm512_load_si512(p+i));b=_mm512_xor_si512(b,_mm512_load_si512(p+i+64));c=_mm512_xor_si512(c,_mm512_load_si512(p+i+128));d=_mm512_xor_si512(d,_mm512_load_si512(p+i+192));}
  a=_mm512_xor_si512(_mm512_xor_si512(a,b),_mm512_xor_si512(c,d)); sink+=_mm512_reduce_add_epi32(a);
}
static inline void finish(__m512i s0,__m512i s1,const uint8_t*p,int g,__m512&a0,__m512&a1){
  __m512 as=_mm512_set1_ps(AS[g]);
  __m512 w0=_mm512_cvtph_ps(_mm256_load_si256((const __m256i*)p)), w1=_mm512_cvtph_ps(_mm256_load_si256((const __m256i*)(p+32)));
  a0=_mm512_add_ps(a0,_mm512_mul_ps(_mm512_cvtepi32_ps(s0),_mm512_mul_ps(w0,as)));
  a1=_mm512_add_ps(a1,_mm512_mul_ps(_mm512_cvtepi32_ps(s1),_mm512_mul_ps(w1,as)));
}
// q1 AND+dpbusd, tile 32 rows
static void k_and(const uint8_t* p, size_t n, int K) {
  int G=K/128; size_t tile=576*(size_t)G;
  for(size_t t=0;t<n/tile;t++){ __m512 a0=_mm512_setzero_ps(),a1=a0;
    for(int g=0;g<G;g++,p+=576){
      for(int i=0;i<576;i+=64)_mm_prefetch((const char*)p+PF+i,_MM_HINT_T0);
      __m512i c0[8],c1[8]; for(int b=0;b<8;b++)c0[b]=c1[b]=_mm512_setzero_si512();
      const int8_t*q=Q+g*128;
      for(int j=0;j<4;j++){ __m512i w0=_mm512_load_si512(p+64+128*j),w1=_mm512_load_si512(p+128+128*j);
        #pragma GCC unroll 8
        for(int b=0;b<8;b++){ __m512i m=_mm512_set1_epi8((char)(1<<b)); int32_t f;memcpy(&f,q+j*32+b*4,4); __m512i x=_mm512_set1_epi32(f);
          c0[b]=_mm512_dpbusd_epi32(c0[b],_mm512_and_si512(w0,m),x); c1[b]=_mm512_dpbusd_epi32(c1[b],_mm512_and_si512(w1,m),x);} }
      __m512i s0=c0[0],s1=c1[0];
      #pragma GCC unroll 8
      for(int b=1;b<8;b++){s0=_mm512_add_epi32(s0,_mm512_srai_epi32(c0[b],b));s1=_mm512_add_epi32(s1,_mm512_srai_epi32(c1[b],b));}
      __m512i o=_mm512_set1_epi32(QS[g]); s0=_mm512_sub_epi32(_mm512_slli_epi32(s0,1),o);s1=_mm512_sub_epi32(_mm512_slli_epi32(s1,1),o);
      finish(s0,s1,p,g,a0,a1);
    }
    _mm512_store_ps(OUT+(t&1023)*32,a0);_mm512_store_ps(OUT+(t&1023)*32+16,a1);
  }
}
// q1 vpermb tables
template<int NT> static void k_perm(const uint8_t* p0, size_t n, int K) {
  int G=K/128; size_t tile=576*(size_t)G;
  const __m512i nib=_mm512_set1_epi8(15),pos=_mm512_set1_epi32(0x30201000),one=_mm512_set1_epi8(1),s64=_mm512_set1_epi8(64);
  for(size_t t=0;t+NT<=n/tile;t+=NT){ __m512 a[NT*2]; for(auto&x:a)x=_mm512_setzero_ps();
    const uint8_t*pt=p0+t*tile;
    for(int g=0;g<G;g++,pt+=576){
      __m512i s[2*NT],u[2*NT]; for(auto&x:s)x=_mm512_setzero_si512(); for(auto&x:u)x=_mm512_setzero_si512();
      for(int k=0;k<NT;k++)for(int i=0;i<576;i+=64)_mm_prefetch((const char*)pt+k*tile+PF+i,_MM_HINT_T0);
      const uint8_t*T=TAB+g*1024;
      #pragma GCC unroll 4
      for(int j=0;j<4;j++){ __m512i t0=_mm512_load_si512(T+j*256),t1=_mm512_load_si512(T+j*256+64),t2=_mm512_load_si512(T+j*256+128),t3=_mm512_load_si512(T+j*256+192);
        #pragma GCC unroll 4
        for(int k=0;k<2*NT;k++){ const uint8_t*p=pt+(k/2)*tile+(k%2)*64;
        __m512i w=_mm512_load_si512(p+64+128*j);
        __m512i lo=_mm512_ternarylogic_epi32(w,nib,pos,0xEA),hi=_mm512_ternarylogic_epi32(_mm512_srli_epi32(w,4),nib,pos,0xEA);
        s[k]=_mm512_dpbusd_epi32(s[k],_mm512_permutexvar_epi8(lo,t0),one); u[k]=_mm512_dpbusd_epi32(u[k],s64,_mm512_permutexvar_epi8(lo,t1));
        s[k]=_mm512_dpbusd_epi32(s[k],_mm512_permutexvar_epi8(hi,t2),one); u[k]=_mm512_dpbusd_epi32(u[k],s64,_mm512_permutexvar_epi8(hi,t3));
        }}
      for(int k=0;k<NT;k++)finish(_mm512_add_epi32(s[2*k],u[2*k]),_mm512_add_epi32(s[2*k+1],u[2*k+1]),pt+k*tile,g,a[2*k],a[2*k+1]);
    }
    for(int k=0;k<2*NT;k++)_mm512_store_ps(OUT+(t&1023)*32+16*k,a[k]);
  }
}
// avx2 tables, 32 rows by byte
static void k_avx2(const uint8_t* p, size_t n, int K) {
  int G=K/128; size_t tile=576*(size_t)G;
  const __m256i nib=_mm256_set1_epi8(15),ff=_mm256_set1_epi16(255);
  for(size_t t=0;t<n/tile;t++){ __m256 a[4]; for(auto&x:a)x=_mm256_setzero_ps();
    for(int g=0;g<G;g++,p+=576){
      for(int i=0;i<576;i+=64)_mm_prefetch((const char*)p+PF+i,_MM_HINT_T0);
      const uint8_t*T=TAB+g*1024; 
      __m256i e=_mm256_setzero_si256(),o=e,he=e,ho=e;
      for(int h=0;h<2;h++){ __m256i hs=_mm256_setzero_si256();
        #pragma GCC unroll 4
        for(int j=0;j<4;j++){ __m256i ls=_mm256_setzero_si256();
          #pragma GCC unroll 2
          for(int i=0;i<2;i++){ const uint8_t*tt=T+(h*8+j*2+i)*64;
            __m256i w=_mm256_load_si256((const __m256i*)(p+64+(h*8+j*2+i)*32));
            __m256i lo=_mm256_and_si256(w,nib),hi=_mm256_and_si256(_mm256_srli_epi16(w,4),nib);
            #define B(o) _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)(tt+o)))
            ls=_mm256_add_epi8(ls,_mm256_add_epi8(_mm256_shuffle_epi8(B(0),lo),_mm256_shuffle_epi8(B(32),hi)));
            hs=_mm256_add_epi8(hs,_mm256_add_epi8(_mm256_shuffle_epi8(B(16),lo),_mm256_shuffle_epi8(B(48),hi)));
          }
          e=_mm256_add_epi16(e,_mm256_and_si256(ls,ff));o=_mm256_add_epi16(o,_mm256_srli_epi16(ls,8)); }
        he=_mm256_add_epi16(he,_mm256_and_si256(hs,ff));ho=_mm256_add_epi16(ho,_mm256_srli_epi16(hs,8)); }
      __m256i c=_mm256_set1_epi16(16384); e=_mm256_sub_epi16(_mm256_add_epi16(e,_mm256_slli_epi16(he,6)),c);o=_mm256_sub_epi16(_mm256_add_epi16(o,_mm256_slli_epi16(ho,6)),c);
      __m256 as=_mm256_set1_ps(AS[g]);
      __m256i s[4]={_mm256_srai_epi32(_mm256_slli_epi32(e,16),16),_mm256_srai_epi32(_mm256_slli_epi32(o,16),16),_mm256_srai_epi32(e,16),_mm256_srai_epi32(o,16)};
      for(int k=0;k<4;k++){ __m256 w0=_mm256_cvtph_ps(_mm_load_si128((const __m128i*)(p+16*k)));
        a[k]=_mm256_add_ps(a[k],_mm256_mul_ps(_mm256_cvtepi32_ps(s[k]),_mm256_mul_ps(w0,as)));}
    }
    for(int k=0;k<4;k++)_mm256_store_ps(OUT+(t&1023)*32+8*k,a[k]);
  }
}
// 2-bit AND+dpbusd, 32 rows
template<int NT> static void k_two(const uint8_t* p, size_t n, int K) {
  int G=K/128; size_t tile=1088*(size_t)G;
  for(size_t t=0;t<n/tile;t++){ __m512 a0=_mm512_setzero_ps(),a1=a0;
    for(int g=0;g<G;g++,p+=1088){
      for(int i=0;i<1088;i+=64)_mm_prefetch((const char*)p+PF+i,_MM_HINT_T0);
      __m512i c0[4],c1[4]; for(int b=0;b<4;b++)c0[b]=c1[b]=_mm512_setzero_si512();
      const int8_t*q=Q+g*128;
      #pragma GCC unroll 2
      for(int j=0;j<8;j++){ __m512i w0=_mm512_load_si512(p+64+128*j),w1=_mm512_load_si512(p+128+128*j);
        #pragma GCC unroll 4
        for(int b=0;b<4;b++){ __m512i m=_mm512_set1_epi8((char)(3<<2*b)); int32_t f;memcpy(&f,q+j*16+b*4,4); __m512i x=_mm512_set1_epi32(f);
          c0[b]=_mm512_dpbusd_epi32(c0[b],_mm512_and_si512(w0,m),x); c1[b]=_mm512_dpbusd_epi32(c1[b],_mm512_and_si512(w1,m),x);} }
      __m512i s0=c0[0],s1=c1[0];
      for(int b=1;b<4;b++){s0=_mm512_add_epi32(s0,_mm512_srai_epi32(c0[b],2*b));s1=_mm512_add_epi32(s1,_mm512_srai_epi32(c1[b],2*b));}
      __m512i o=_mm512_set1_epi32(QS[g]); s0=_mm512_sub_epi32(s0,o);s1=_mm512_sub_epi32(s1,o);
      finish(s0,s1,p,g,a0,a1);
    }
    _mm512_store_ps(OUT+(t&1023)*32,a0);_mm512_store_ps(OUT+(t&1023)*32+16,a1);
  }
}
// avx2 2-bit maddubs, 32 rows by dword
static void k_two2(const uint8_t* p, size_t n, int K) {
  int G=K/128; size_t tile=1088*(size_t)G; const __m256i m3=_mm256_set1_epi8(3),ones=_mm256_set1_epi16(1);
  for(size_t t=0;t<n/tile;t++){ __m256 a[4]; for(auto&x:a)x=_mm256_setzero_ps();
    for(int g=0;g<G;g++,p+=1088){
      for(int i=0;i<1088;i+=64)_mm_prefetch((const char*)p+PF+i,_MM_HINT_T0);
      __m256i s[4]; for(auto&x:s)x=_mm256_setzero_si256();
      const int8_t*q=Q+g*128;
      for(int j=0;j<8;j++){ 
        __m256i x[4]; for(int b=0;b<4;b++){int32_t f;memcpy(&f,q+j*16+b*4,4); x[b]=_mm256_set1_epi32(f);}
        #pragma GCC unroll 4
        for(int k=0;k<4;k++){ __m256i w=_mm256_load_si256((const __m256i*)(p+64+128*j+32*k));
          __m256i v0=_mm256_maddubs_epi16(_mm256_and_si256(w,m3),x[0]),v1=_mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w,2),m3),x[1]),v2=_mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w,4),m3),x[2]),v3=_mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w,6),m3),x[3]);
          s[k]=_mm256_add_epi16(s[k],_mm256_add_epi16(_mm256_add_epi16(v0,v1),_mm256_add_epi16(v2,v3))); } }
      __m256 as=_mm256_set1_ps(AS[g]); __m256i o=_mm256_set1_epi32(QS[g]);
      for(int k=0;k<4;k++){ __m256 w0=_mm256_cvtph_ps(_mm_load_si128((const __m128i*)(p+16*k)));
        a[k]=_mm256_add_ps(a[k],_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_madd_epi16(s[k],ones),o)),_mm256_mul_ps(w0,as)));}
    }
    for(int k=0;k<4;k++)_mm256_store_ps(OUT+(t&1023)*32+8*k,a[k]);
  }
}
typedef void(*fn)(const uint8_t*,size_t,int);
int main(int c,char**v){ int th=c>1?atoi(v[1]):1;
  W=(uint8_t*)aligned_alloc(4096,BYTES+65536); for(size_t i=0;i<BYTES/8;i++)((uint64_t*)W)[i]=(i*0x9E3779B97F4A7C15ull)&0xBFFFBFFFBFFFBFFFull;
  for(int i=0;i<16384;i++)Q[i]=rand()%255-127; for(int i=0;i<256;i++){AS[i]=1;QS[i]=3;}
  struct{const char*n;fn f;}ks[]={{"read",k_read},{"q1 and",k_and},{"q1 perm1",k_perm<1>},{"q1 perm2",k_perm<2>},{"q1 avx2",k_avx2},{"2b and512",k_two<1>},{"2b avx2",k_two2}};
  for(int cached=0;cached<CC;cached++)for(int K:{2048,6144}){ double best[16]; for(auto&b:best)b=1e9;
   size_t N=cached?(size_t)(768<<10):BYTES/th; int reps=cached?200:1;
   for(int r=0;r<7;r++)for(int k=0;k<7;k++){ auto b=clk::now();
    std::vector<std::thread> ts; for(int i=0;i<th;i++)ts.emplace_back([&,i]{for(int z=0;z<reps;z++)ks[k].f(W+(size_t)i*(BYTES/th),N&~(size_t)255,K);}); for(auto&t:ts)t.join();
    best[k]=std::min(best[k],std::chrono::duration<double>(clk::now()-b).count()); }
   printf("%s K=%d:",cached?"L2":"mem",K); for(int k=0;k<7;k++)printf("  %s %.1f",ks[k].n,(double)N*th*reps/best[k]/1e9); puts(" GB/s"); }
}
