// Parsed JSON into the types of a manifest: strict, and each refusal names the place in the file.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <attnport/contract.hpp>

#include "json.hpp"
#include "ordered.hpp"

namespace attnport::reader {

/// Throws IntegrityError: what was got, and the words for what is expected.
[[noreturn]] void refuse(const std::string& where, const Value& got, const std::string& expected);

/// How a T is read. `words` is what messages call it; `fits`: whether a value is of this one of several kinds; `read`
/// throws IntegrityError naming `where`.
template <class T> struct Kind;

/// One key of an object, and what takes its value.
struct Field {
    std::string_view name;
    std::function<void(const Value&, const std::string&)> read;
};

/// A field that is read into `target`.
template <class T> Field into(std::string_view name, T& target) {
    return {name, [&target](const Value& value, const std::string& where) { target = Kind<T>::read(value, where); }};
}

/// A text field that takes some values only.
Field one_of(std::string_view name, std::string& target, std::initializer_list<std::string_view> allowed);

/// Reads an object that has exactly these keys, in the order in which the file has them, and then checks the whole:
/// `check` throws std::invalid_argument, which becomes an IntegrityError naming `where`.
void read_record(const Value& value, const std::string& where, const std::string& kind,
                 const std::vector<Field>& fields, const std::function<void()>& check = {});

template <> struct Kind<bool> {
    static std::string words() { return "bool"; }
    static bool fits(const Value& value) { return value.get<bool>() != nullptr; }
    static bool read(const Value& value, const std::string& where);
};

template <> struct Kind<std::int64_t> {
    static std::string words() { return "int"; }
    static bool fits(const Value& value) {
        return value.get<std::int64_t>() != nullptr || value.get<BigInteger>() != nullptr;
    }
    static std::int64_t read(const Value& value, const std::string& where);
};

template <> struct Kind<double> {
    static std::string words() { return "float"; }
    static double read(const Value& value, const std::string& where);
};

template <> struct Kind<std::string> {
    static std::string words() { return "str"; }
    static bool fits(const Value& value) { return value.get<std::string>() != nullptr; }
    static std::string read(const Value& value, const std::string& where);
};

template <> struct Kind<Axis> {
    static std::string words() { return "str | int"; }
    static Axis read(const Value& value, const std::string& where);
};

template <class T> struct Kind<std::optional<T>> {
    static std::string words() { return Kind<T>::words() + " | None"; }
    static std::optional<T> read(const Value& value, const std::string& where) {
        if (value.get<std::nullptr_t>() != nullptr) return std::nullopt;
        if (!Kind<T>::fits(value)) refuse(where, value, words());
        return Kind<T>::read(value, where);
    }
};

template <class T> struct Kind<std::vector<T>> {
    static std::string words() { return "tuple[" + Kind<T>::words() + ", ...]"; }
    static std::vector<T> read(const Value& value, const std::string& where) {
        const auto* items = value.get<Array>();
        if (items == nullptr) refuse(where, value, words());
        std::vector<T> result;
        result.reserve(items->size());
        for (const auto& item : *items) {
            result.push_back(Kind<T>::read(item, where + "[" + std::to_string(result.size()) + "]"));
        }
        return result;
    }
};

template <class T> struct Kind<Ordered<T>> {
    static std::string words() { return "Mapping[str, " + Kind<T>::words() + "]"; }
    static Ordered<T> read(const Value& value, const std::string& where) {
        const auto* items = value.get<Object>();
        if (items == nullptr) refuse(where, value, words());
        Ordered<T> result;
        for (const auto& [key, item] : *items) {
            std::string name = Kind<std::string>::read(Value{key}, where);
            T read = Kind<T>::read(item, where + "." + key);
            result.add(std::move(name), std::move(read));
        }
        return result;
    }
};

/// What the kinds of objects have in common.
struct Record {
    static bool fits(const Value& value) { return value.get<Object>() != nullptr; }
};

template <> struct Kind<Dim> : Record {
    static std::string words() { return "Dim"; }
    static Dim read(const Value& value, const std::string& where);
};

template <> struct Kind<TensorSpec> : Record {
    static std::string words() { return "Tensor"; }
    static TensorSpec read(const Value& value, const std::string& where);
};

template <> struct Kind<Mask> : Record {
    static std::string words() { return "Mask"; }
    static Mask read(const Value& value, const std::string& where);
};

template <> struct Kind<IO> : Record {
    static std::string words() { return "IO"; }
    static IO read(const Value& value, const std::string& where);
};

}  // namespace attnport::reader
