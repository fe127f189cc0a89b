// After a kernel's source: what a driver needs to launch it. ENTRY is its function, SHARED_BYTES its dynamic shared
// memory, SHARED_TYPE and SHARED_NAME the declaration of that.
#include <utility>

__attribute__((aligned(128))) thread_local SHARED_TYPE
    SHARED_NAME[(SHARED_BYTES + emulator::GUARD + sizeof(SHARED_TYPE) - 1) / sizeof(SHARED_TYPE)];

namespace emulator {

template <class T>
constexpr char kind_of() {
    using Plain = std::remove_cv_t<T>;
    if (std::is_pointer_v<Plain>) return 'p';
    if (std::is_same_v<Plain, int> || std::is_same_v<Plain, unsigned>) return 'i';
    if (std::is_same_v<Plain, float>) return 'f';
    return '?';
}

template <class... Parameters>
struct Signature {
    static constexpr char kinds[] = {kind_of<Parameters>()..., 0};

    template <size_t... I>
    static void call(void (*kernel)(Parameters...), void* const* arguments, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
    }
    static void call(void (*kernel)(Parameters...), void* const* arguments) {
        call(kernel, arguments, std::index_sequence_for<Parameters...>());
    }
};

template <class... Parameters>
Signature<Parameters...> signature_of(void (*)(Parameters...));

using Entry = decltype(signature_of(&ENTRY));

}  // namespace emulator

#pragma GCC visibility push(default)
extern "C" {
// One letter a parameter: pointer, int, float.
const char* emulated_kinds() { return emulator::Entry::kinds; }
void emulated_invoke(void* const* arguments) { emulator::Entry::call(&ENTRY, arguments); }
unsigned char* emulated_dynamic() { return reinterpret_cast<unsigned char*>(SHARED_NAME); }
}
#pragma GCC visibility pop
