// shohin._core: the only file that knows Python. See _core.pyi for the interface.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "packing.hpp"
#include "pool.hpp"
#include "program.hpp"
#include "registry.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using shohin::CallSource;
using shohin::OperandSource;
using shohin::Outcome;
using shohin::Pool;
using shohin::Program;
using shohin::Step;

using Writable = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ReadOnly = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Room = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Keeps the arrays of its operands alive, and the pool whose number of threads its scratch is made for.
struct PyProgram {
    std::vector<nb::object> kept;
    Pool *pool = nullptr;
    std::unique_ptr<Program> program;
};

OperandSource read_operand(nb::handle item, std::vector<nb::object> &kept) {
    OperandSource source;
    if (item.is_none()) return source;
    const auto [array, kind, shape] = nb::cast<std::tuple<nb::object, std::string, std::vector<std::int64_t>>>(item);
    source.kind = kind;
    source.shape = shape;
    Writable writable;
    ReadOnly any;
    if (nb::try_cast(array, writable, false)) {
        source.writable = true;
        source.data = static_cast<std::uint8_t *>(writable.data());
        source.bytes = writable.nbytes();
    } else if (nb::try_cast(array, any, false)) {
        source.data = const_cast<std::uint8_t *>(static_cast<const std::uint8_t *>(any.data()));
        source.bytes = any.nbytes();
    } else {
        throw std::invalid_argument("an operand of " + kind + " is not a contiguous array in memory");
    }
    kept.push_back(array);
    return source;
}

void make_program(PyProgram *self, nb::sequence calls, std::int64_t rows, std::int64_t wanted,
                  nb::object pool, const std::string &tier) {
    const shohin::Tier *found = shohin::find_tier(tier.c_str());
    if (found == nullptr) throw std::invalid_argument("kernel tier '" + tier + "' does not run on this machine");
    PyProgram made;
    std::vector<CallSource> sources;
    for (nb::handle item : calls) {
        auto [op, operands, ints, floats] =
            nb::cast<std::tuple<std::string, nb::object, std::vector<std::int64_t>, std::vector<double>>>(item);
        CallSource source{std::move(op), {}, std::move(ints), std::move(floats)};
        for (nb::handle operand : operands) source.operands.push_back(read_operand(operand, made.kept));
        sources.push_back(std::move(source));
    }
    made.pool = nb::cast<Pool *>(pool);
    made.kept.push_back(pool);
    made.program = std::make_unique<Program>(std::move(sources), rows, wanted, made.pool->threads(), *found);
    new (self) PyProgram(std::move(made));
}

bool signals_allow(void *) {
    nb::gil_scoped_acquire hold;
    return PyErr_CheckSignals() == 0;
}

bool run(PyProgram &self, std::int64_t first, std::int64_t last, const Ints &tokens, const Ints &positions,
         const Ints &sequences, const Table &pages, const Ints &wanted) {
    Step step;
    step.rows = static_cast<std::int64_t>(tokens.shape(0));
    if (positions.shape(0) != tokens.shape(0) || sequences.shape(0) != tokens.shape(0))
        throw std::invalid_argument("step: tokens, positions and sequences must have the same length");
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.sequences = sequences.data();
    step.pages = pages.data();
    step.page_rows = static_cast<std::int64_t>(pages.shape(0));
    step.page_columns = static_cast<std::int64_t>(pages.shape(1));
    step.wanted = wanted.data();
    step.wanted_rows = static_cast<std::int64_t>(wanted.shape(0));
    self.pool->revive();
    Outcome outcome = Outcome::finished;
    {
        nb::gil_scoped_release free;
        self.program->check(first, last, step);
        Pool::Session session(*self.pool, signals_allow, nullptr);
        outcome = self.program->run(first, last, step, session);
    }
    if (outcome == Outcome::interrupted) throw nb::python_error();
    return outcome == Outcome::finished;
}

const shohin::Format &find_format(const std::string &tier, const std::string &format) {
    const shohin::Tier *found = shohin::find_tier(tier.c_str());
    if (found == nullptr) throw std::invalid_argument("kernel tier '" + tier + "' does not run on this machine");
    const shohin::Format *known = found->format(format.c_str());
    if (known == nullptr) throw std::invalid_argument("no kernel reads the format " + format);
    return *known;
}

bool tiles(const std::string &tier, const std::string &format) { return find_format(tier, format).tiling != nullptr; }

bool pack(const std::string &tier, const std::string &format, const Bytes &rows, const Room &packed, Pool &pool) {
    const shohin::Format &known = find_format(tier, format);
    pool.revive();
    nb::gil_scoped_release free;
    const shohin::Matrix matrix = {rows.data(), static_cast<std::int64_t>(rows.shape(0)),
                                   static_cast<std::int64_t>(rows.shape(1))};
    return shohin::pack(known, matrix, packed.data(), packed.nbytes(), pool) == Outcome::finished;
}

std::vector<std::string> tier_names() {
    std::vector<std::string> names;
    for (const shohin::Tier *tier : shohin::tiers()) names.emplace_back(tier->name);
    return names;
}

std::vector<std::string> format_names() {
    const shohin::Tier &tier = *shohin::tiers().front();
    std::vector<std::string> names;
    for (int i = 0; i < tier.format_count; ++i) names.emplace_back(tier.formats[i].name);
    return names;
}

std::vector<std::string> op_names() {
    const shohin::Tier &tier = *shohin::tiers().front();
    std::vector<std::string> names;
    for (int i = 0; i < tier.kernel_count; ++i) names.emplace_back(tier.kernels[i]->name);
    return names;
}

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "The native core of the device cpu.";
    m.def("tiers", tier_names);
    m.def("formats", format_names);
    m.def("ops", op_names);
    m.def("tiles", tiles, "tier"_a, "format"_a);
    m.def("pack", pack, "tier"_a, "format"_a, "rows"_a, "packed"_a, "pool"_a);
    nb::class_<Pool>(m, "Pool")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &Pool::threads)
        .def("cancel", &Pool::cancel);
    nb::class_<PyProgram>(m, "Program")
        .def("__init__", make_program, "calls"_a, "rows"_a, "wanted"_a, "pool"_a, "tier"_a)
        .def_prop_ro("scratch_bytes", [](const PyProgram &self) { return self.program->scratch_bytes(); })
        .def("run", run, "first"_a, "last"_a, "tokens"_a, "positions"_a, "sequences"_a, "pages"_a, "wanted"_a);
}
