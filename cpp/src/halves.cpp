#include "halves.hpp"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include <attnport/error.hpp>

#include "memory.hpp"

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

/// The functions that read element `index` of each dtype, as the widest that holds it.
template <DType> struct Read;
template <> struct Read<DType::Float32> {
    static float at(const void* data, std::size_t index) { return load<float>(data, index); }
};
template <> struct Read<DType::Float64> {
    static double at(const void* data, std::size_t index) { return load<double>(data, index); }
};
template <> struct Read<DType::Float16> {
    static float at(const void* data, std::size_t index) { return from_half(load<std::uint16_t>(data, index)); }
};
template <> struct Read<DType::BFloat16> {
    static float at(const void* data, std::size_t index) { return from_bfloat16(load<std::uint16_t>(data, index)); }
};
template <> struct Read<DType::Int32> {
    static double at(const void* data, std::size_t index) { return load<std::int32_t>(data, index); }
};
template <> struct Read<DType::Int64> {
    static double at(const void* data, std::size_t index) {
        return static_cast<double>(load<std::int64_t>(data, index));
    }
};
template <> struct Read<DType::Bool> {
    static double at(const void* data, std::size_t index) { return load<std::uint8_t>(data, index) != 0 ? 1 : 0; }
};

template <DType> struct Write;
template <> struct Write<DType::Float32> {
    static void at(void* data, std::size_t index, double value) { store(data, index, narrowed(value)); }
};
template <> struct Write<DType::Float64> {
    static void at(void* data, std::size_t index, double value) { store(data, index, value); }
};
template <> struct Write<DType::Float16> {
    static void at(void* data, std::size_t index, double value) { store(data, index, to_half(value)); }
};
// By way of float32, rounded twice: so does Python's reader, PyTorch and ml_dtypes.
template <> struct Write<DType::BFloat16> {
    static void at(void* data, std::size_t index, double value) { store(data, index, to_bfloat16(narrowed(value))); }
};

template <DType From, DType To> void convert(const void* data, std::size_t count, void* out) {
    for (std::size_t index = 0; index < count; ++index) Write<To>::at(out, index, Read<From>::at(data, index));
}

template <DType From> bool convert_to(DType wanted, const void* data, std::size_t count, void* out) {
    switch (wanted) {
        case DType::Float32: convert<From, DType::Float32>(data, count, out); return true;
        case DType::Float64: convert<From, DType::Float64>(data, count, out); return true;
        case DType::Float16: convert<From, DType::Float16>(data, count, out); return true;
        case DType::BFloat16: convert<From, DType::BFloat16>(data, count, out); return true;
        default: return false;
    }
}

bool convert_any(DType from, DType wanted, const void* data, std::size_t count, void* out) {
    switch (from) {
        case DType::Float32: return convert_to<DType::Float32>(wanted, data, count, out);
        case DType::Float64: return convert_to<DType::Float64>(wanted, data, count, out);
        case DType::Float16: return convert_to<DType::Float16>(wanted, data, count, out);
        case DType::BFloat16: return convert_to<DType::BFloat16>(wanted, data, count, out);
        case DType::Int32: return convert_to<DType::Int32>(wanted, data, count, out);
        case DType::Int64: return convert_to<DType::Int64>(wanted, data, count, out);
        case DType::Bool: return convert_to<DType::Bool>(wanted, data, count, out);
    }
    return false;
}

Tensor made(std::string_view name_, DType from, const Shape& shape, const void* data, DType wanted) {
    const std::size_t count = elements(shape);
    if (count > std::numeric_limits<std::size_t>::max() / size_bytes(wanted)) {
        throw FeedError("tensor '" + std::string(name_) + "': it is larger than memory.");
    }
    auto memory = allocate(count * size_bytes(wanted));
    if (from == wanted) {
        if (count != 0) std::memcpy(memory.get(), data, count * size_bytes(wanted));
    } else if (!convert_any(from, wanted, data, count, memory.get())) {
        throw Error("tensor '" + std::string(name_) + "': there is no cast from " + std::string(name(from)) + " to " +
                    std::string(name(wanted)) + ".");
    }
    return {std::string(name_), wanted, shape, std::move(memory)};
}

}  // namespace

Tensor cast(const Tensor& tensor, DType wanted) {
    if (tensor.dtype() == wanted) return tensor;
    return made(tensor.name(), tensor.dtype(), tensor.shape(), tensor.data(), wanted);
}

Tensor cast(const Input& input, DType wanted) {
    return made(input.name(), input.dtype(), input.shape(), input.data(), wanted);
}

void to_double(const void* data, DType dtype, std::size_t count, double* out) {
    convert_any(dtype, DType::Float64, data, count, out);
}

}  // namespace attnport::reader
