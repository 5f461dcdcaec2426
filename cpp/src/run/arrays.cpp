#include "run/arrays.hpp"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <attnport/error.hpp>

namespace attnport::reader {
namespace {

// Inputs are the caller's memory, which may be aligned to nothing: every element is read and written by memcpy, which
// compilers turn into a plain load.
template <class T> T load(const void* data, std::size_t index) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + index * sizeof(T), sizeof(T));
    return value;
}

template <class T> void store(void* data, std::size_t index, T value) {
    std::memcpy(static_cast<std::byte*>(data) + index * sizeof(T), &value, sizeof(T));
}

template <class To, class From> To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof(To));
    return bits;
}

/// A binary64 as a binary16. A float32 goes through here as well: widening it is exact, so it is rounded once.
std::uint16_t to_half(double number) {
    constexpr int dropped = 52 - 10;
    const auto bits = bits_of<std::uint64_t>(number);
    const auto sign = static_cast<std::uint16_t>(bits >> 48U & 0x8000U);
    const auto exponent = static_cast<int>(bits >> 52U & 0x7FFU);
    const std::uint64_t fraction = bits & 0xFFFFFFFFFFFFFU;
    if (exponent == 0x7FF && fraction != 0) {  // a NaN must not be rounded to Inf
        return static_cast<std::uint16_t>(sign | 0x7E00U | static_cast<std::uint16_t>(fraction >> dropped));
    }
    const int scaled = exponent - 1023 + 15;
    if (scaled >= 31) return static_cast<std::uint16_t>(sign | 0x7C00U);
    // Below the normal numbers the leading one is part of the fraction, and more of it is dropped.
    const bool normal = scaled >= 1;
    const int shift = normal ? dropped : dropped + 1 - scaled;
    if (shift > 53) return sign;
    const std::uint64_t whole = normal ? fraction : fraction | 1ULL << 52U;
    const std::uint64_t kept = whole >> static_cast<unsigned>(shift);
    const std::uint64_t rest = whole & ((1ULL << static_cast<unsigned>(shift)) - 1);
    const std::uint64_t middle = 1ULL << static_cast<unsigned>(shift - 1);
    const bool up = rest > middle || (rest == middle && (kept & 1U) != 0);
    // A carry goes into the exponent, which is what rounding asks for: up to the next power, or to Inf.
    const std::uint64_t base = normal ? static_cast<std::uint64_t>(scaled) << 10U : 0;
    return static_cast<std::uint16_t>(sign | (base + kept + (up ? 1U : 0U)));
}

float from_half(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const std::uint32_t exponent = half >> 10U & 0x1FU;
    const std::uint32_t fraction = half & 0x3FFU;
    if (exponent == 0) {
        const float size = static_cast<float>(fraction) * 0x1p-24F;
        return bits_of<float>(bits_of<std::uint32_t>(size) | sign);
    }
    const std::uint32_t wide = exponent == 31 ? 0xFFU : exponent + 127 - 15;
    return bits_of<float>(sign | wide << 23U | fraction << 13U);
}

/// A binary32 as its upper half.
std::uint16_t to_bfloat16(float number) {
    const auto bits = bits_of<std::uint32_t>(number);
    const std::uint32_t upper = bits >> 16U;
    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(upper | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7FFFU + (upper & 1U)) >> 16U);
}

float from_bfloat16(std::uint16_t half) { return bits_of<float>(static_cast<std::uint32_t>(half) << 16U); }

/// A double beyond float's range becomes Inf, as IEEE 754 has it; the language alone leaves that open.
float narrowed(double number) {
    static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);
    return static_cast<float>(number);
}

/// Calls `use` with what reads element `index` of a dtype as a double, in which every dtype's numbers fit.
template <class Use> void with_reader(DType dtype, const Use& use) {
    using Data = const void*;
    using Index = std::size_t;
    switch (dtype) {
        case DType::Float32: return use([](Data data, Index at) -> double { return load<float>(data, at); });
        case DType::Float64: return use([](Data data, Index at) { return load<double>(data, at); });
        case DType::Float16:
            return use([](Data data, Index at) -> double { return from_half(load<std::uint16_t>(data, at)); });
        case DType::BFloat16:
            return use([](Data data, Index at) -> double { return from_bfloat16(load<std::uint16_t>(data, at)); });
        case DType::Int32: return use([](Data data, Index at) -> double { return load<std::int32_t>(data, at); });
        case DType::Int64:
            return use([](Data data, Index at) { return static_cast<double>(load<std::int64_t>(data, at)); });
        case DType::Bool: return use([](Data data, Index at) { return load<std::uint8_t>(data, at) != 0 ? 1.0 : 0.0; });
    }
}

/// Calls `use` with what writes element `index` of a dtype.
template <class Use> void with_writer(DType dtype, const Use& use) {
    using Index = std::size_t;
    switch (dtype) {
        case DType::Float32: return use([](void* out, Index at, double value) { store(out, at, narrowed(value)); });
        case DType::Float64: return use([](void* out, Index at, double value) { store(out, at, value); });
        case DType::Float16: return use([](void* out, Index at, double value) { store(out, at, to_half(value)); });
        // By way of float32, rounded twice: so does Python's reader, PyTorch and ml_dtypes.
        case DType::BFloat16:
            return use([](void* out, Index at, double value) { store(out, at, to_bfloat16(narrowed(value))); });
        case DType::Int32:
            return use([](void* out, Index at, double value) { store(out, at, static_cast<std::int32_t>(value)); });
        case DType::Int64:
            return use([](void* out, Index at, double value) { store(out, at, static_cast<std::int64_t>(value)); });
        case DType::Bool: return use([](void* out, Index at, double value) { store(out, at, value != 0); });
    }
}

void convert(DType from, DType wanted, const void* data, std::size_t count, void* out) {
    with_reader(from, [&](const auto& read) {
        with_writer(wanted, [&](const auto& write) {
            for (std::size_t at = 0; at < count; ++at) write(out, at, read(data, at));
        });
    });
}

}  // namespace

Tensor cast(const Tensor& tensor, DType wanted) {
    return tensor.dtype() == wanted ? tensor : cast(Input(tensor), wanted);
}

Tensor cast(const Input& input, DType wanted) {
    const std::size_t count = elements(input.shape());
    if (count > std::numeric_limits<std::size_t>::max() / size_bytes(wanted)) {
        throw FeedError("tensor '" + std::string(input.name()) + "': it is larger than memory.");
    }
    auto memory = allocate(count * size_bytes(wanted));
    convert(input.dtype(), wanted, input.data(), count, memory.get());
    return {std::string(input.name()), wanted, input.shape(), std::move(memory)};
}

Tensor tensor_of(const TensorSpec& spec, Shape shape, const std::vector<std::int64_t>& values) {
    auto memory = allocate(values.size() * size_bytes(spec.dtype));
    convert(DType::Int64, spec.dtype, values.data(), values.size(), memory.get());
    return {spec.name, spec.dtype, std::move(shape), std::move(memory)};
}

void to_double(const void* data, DType dtype, std::size_t count, double* out) {
    convert(dtype, DType::Float64, data, count, out);
}

}  // namespace attnport::reader
