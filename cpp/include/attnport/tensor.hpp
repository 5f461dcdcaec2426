// Tensors that go in (borrowed) and come out (owned). All are dense, in C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <attnport/api.hpp>

namespace attnport {

/// The element types of a bundle. BFloat16 is a file's own only, never a contract's.
enum class DType : std::uint8_t { Float32, Float16, Float64, Int32, Int64, Bool, BFloat16 };

/// The name as `bundle.json` has it, such as `float32`.
[[nodiscard]] ATTNPORT_API std::string_view name(DType dtype) noexcept;

/// The size of one element.
[[nodiscard]] ATTNPORT_API std::size_t size_bytes(DType dtype) noexcept;

/// Half precision as it travels: IEEE 754 binary16, and the upper half of a binary32.
struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};

template <class T> struct DTypeOf;
template <> struct DTypeOf<float> : std::integral_constant<DType, DType::Float32> {};
template <> struct DTypeOf<Float16> : std::integral_constant<DType, DType::Float16> {};
template <> struct DTypeOf<double> : std::integral_constant<DType, DType::Float64> {};
template <> struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::Int32> {};
template <> struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::Int64> {};
template <> struct DTypeOf<bool> : std::integral_constant<DType, DType::Bool> {};
template <> struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::BFloat16> {};

using Shape = std::vector<std::int64_t>;

/// How many elements a shape has. Throws FeedError for a size below zero, or more than memory could hold.
[[nodiscard]] ATTNPORT_API std::size_t elements(const Shape& shape);

/// Where a tensor's memory is.
enum class Place : std::uint8_t { Cpu, Cuda };

/// An output, or an input that the library made. Copies share the memory.
class ATTNPORT_API Tensor {
public:
    Tensor() = default;

    /// Takes part in the ownership of `data`, which holds elements(shape) * size_bytes(dtype) bytes.
    Tensor(std::string name, DType dtype, Shape shape, std::shared_ptr<const void> data, Place place = Place::Cpu);

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] DType dtype() const noexcept { return dtype_; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
    [[nodiscard]] Place place() const noexcept { return place_; }

    /// The number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] const void* data() const noexcept { return data_.get(); }

    /// The elements. Throws FeedError where T is not the dtype, or the memory is a GPU's.
    template <class T> [[nodiscard]] const T* data() const {
        require(DTypeOf<T>::value);
        return static_cast<const T*>(data_.get());
    }

private:
    void require(DType wanted) const;

    std::string name_;
    Shape shape_;
    std::shared_ptr<const void> data_;
    std::size_t size_ = 0;
    DType dtype_ = DType::Float32;
    Place place_ = Place::Cpu;
};

/// A named input: a view of memory that the caller keeps alive during the call. The name is a view too.
class ATTNPORT_API Input {
public:
    Input(std::string_view name, const void* data, DType dtype, Shape shape, Place place = Place::Cpu);

    template <class T>
    Input(std::string_view name, const T* data, Shape shape, Place place = Place::Cpu)
        : Input(name, static_cast<const void*>(data), DTypeOf<T>::value, std::move(shape), place) {}

    /// Throws FeedError unless there are as many values as the shape says.
    template <class T, class A>
    Input(std::string_view name, const std::vector<T, A>& values, Shape shape)
        : Input(name, values.data(), std::move(shape)) {
        static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no array of bool; give a pointer to one");
        require(values.size());
    }

    /// A view of a vector that is about to go away.
    template <class T, class A> Input(std::string_view name, const std::vector<T, A>&& values, Shape shape) = delete;

    Input(const Tensor& tensor);  // NOLINT(google-explicit-constructor): masks and outputs are given as they are
    Input(const Tensor&& tensor) = delete;

    [[nodiscard]] std::string_view name() const noexcept { return name_; }
    [[nodiscard]] const void* data() const noexcept { return data_; }
    [[nodiscard]] DType dtype() const noexcept { return dtype_; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
    [[nodiscard]] Place place() const noexcept { return place_; }

private:
    void require(std::size_t values) const;

    std::string_view name_;
    Shape shape_;
    const void* data_;
    DType dtype_;
    Place place_;
};

using Inputs = std::vector<Input>;

/// The outputs of a call, in the order of the contract.
class ATTNPORT_API Outputs {
public:
    explicit Outputs(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

    /// The output of that name. Throws Error where there is none.
    [[nodiscard]] const Tensor& at(std::string_view name) const;
    [[nodiscard]] const Tensor& operator[](std::size_t index) const { return tensors_[index]; }
    [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
    [[nodiscard]] auto begin() const noexcept { return tensors_.begin(); }
    [[nodiscard]] auto end() const noexcept { return tensors_.end(); }

private:
    std::vector<Tensor> tensors_;
};

}  // namespace attnport
