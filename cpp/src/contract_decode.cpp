#include <algorithm>
#include <array>
#include <stdexcept>

#include "contract.hpp"
#include "decode.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::array<DType, 6> dtypes = {DType::Float32, DType::Float16, DType::Float64,
                                         DType::Int32,   DType::Int64,   DType::Bool};

DType contract_dtype(const std::string& tensor, const std::string& text) {
    const auto* known = std::find_if(dtypes.begin(), dtypes.end(), [&text](DType one) { return name(one) == text; });
    if (known != dtypes.end()) return *known;
    std::vector<std::string> names;
    names.reserve(dtypes.size());
    for (const auto dtype : dtypes) names.emplace_back(name(dtype));
    throw std::invalid_argument("tensor " + quoted(tensor) + ": dtype " + quoted(text) + " is not one of " +
                                joined(names));
}

}  // namespace

Dim Kind<Dim>::read(const Value& value, const std::string& where) {
    Dim dim;
    read_record(value, where, words(),
                {into("name", dim.name), into("min", dim.min), into("opt", dim.opt), into("max", dim.max)},
                [&dim] { check(dim); });
    return dim;
}

TensorSpec Kind<TensorSpec>::read(const Value& value, const std::string& where) {
    TensorSpec spec;
    std::string dtype;
    read_record(value, where, words(),
                {into("name", spec.name), into("dtype", dtype), into("dims", spec.dims), into("high", spec.high)},
                [&spec, &dtype] {
                    spec.dtype = contract_dtype(spec.name, dtype);
                    check(spec);
                });
    return spec;
}

Mask Kind<Mask>::read(const Value& value, const std::string& where) {
    Mask mask;
    read_record(value, where, words(),
                {into("kinds", mask.kinds), into("input", mask.input),
                 one_of("polarity", mask.polarity, {"keep", "hide", "additive"}),
                 one_of("alignment", mask.alignment, {"upper_left", "lower_right"}), into("window", mask.window),
                 one_of("carries", mask.carries, {"mask", "lengths", "ids", "marks"}), into("keys", mask.keys)},
                [&mask] { check(mask); });
    return mask;
}

IO Kind<IO>::read(const Value& value, const std::string& where) {
    IO io;
    read_record(value, where, words(),
                {into("inputs", io.inputs), into("outputs", io.outputs), into("dims", io.dims),
                 into("masks", io.masks)},
                [&io] { check(io); });
    return io;
}

}  // namespace attnport::reader
