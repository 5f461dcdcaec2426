// JSON of an untrusted file: parsed strictly, and read by functions whose refusals name the place in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace attnport::reader {

using Json = nlohmann::json;

/// Parses JSON text. Throws IntegrityError naming `where`: no JSON, a duplicate key, NaN or Inf, a number out of
/// range, text that is no UTF-8, nesting deeper than 32, a zero byte or a byte order mark.
[[nodiscard]] Json parse(std::string_view data, const std::string& where);

/// A parsed value with its place in the file, such as `io.dims[0].min`. Each function that reads it throws an
/// IntegrityError that names the place, what was got and what is expected.
class Located {
    template <class Read> using Made = std::decay_t<std::invoke_result_t<const Read&, const Located&>>;

public:
    /// The value has to stay.
    Located(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

    [[nodiscard]] const Json& value() const noexcept { return *value_; }

    /// Throws IntegrityError with the place and what is wrong there.
    [[noreturn]] void fail(const std::string& problem) const;
    /// Throws IntegrityError with the place, the value and what is expected instead.
    [[noreturn]] void expected(const std::string& what) const;

    /// Throws unless the value is an object with exactly these keys.
    void keys(std::initializer_list<std::string_view> names) const;

    /// Whether the value, an object, has a key.
    [[nodiscard]] bool has(const char* key) const;
    /// The member of an object; it has to be there.
    [[nodiscard]] Located operator[](const char* key) const;

    [[nodiscard]] bool boolean() const;
    /// An integer that every reader of JSON takes for what is written: of less than 2**53.
    [[nodiscard]] std::int64_t integer() const;
    /// A number; an integer is one too.
    [[nodiscard]] double number() const;
    /// Printable text of at most 1000 characters: it reaches a terminal in messages.
    [[nodiscard]] std::string text() const;
    /// Text of at most 1000 characters that no message shows as it is.
    [[nodiscard]] std::string any_text() const;
    [[nodiscard]] std::string one_of(std::initializer_list<std::string_view> allowed) const;

    /// What `read` makes of the value, a function or a member of this class; none for null.
    template <class Read> [[nodiscard]] auto optional(const Read& read) const -> std::optional<Made<Read>> {
        if (value_->is_null()) return std::nullopt;
        return std::invoke(read, *this);
    }
    /// Calls `read` with each item of a list.
    template <class Read> void each(const Read& read) const {
        if (!value_->is_array()) expected("a list");
        std::size_t index = 0;
        for (const Json& item : *value_) {
            std::invoke(read, Located(item, place_ + "[" + std::to_string(index++) + "]"));
        }
    }
    /// What `read` makes of each item of a list.
    template <class Read> [[nodiscard]] auto list(const Read& read) const -> std::vector<Made<Read>> {
        std::vector<Made<Read>> found;
        each([&](const Located& item) { found.push_back(std::invoke(read, item)); });
        return found;
    }
    /// What `read` makes of each member of an object whose keys are any printable texts.
    template <class Read> [[nodiscard]] auto map(const Read& read) const -> std::map<std::string, Made<Read>> {
        if (!value_->is_object()) expected("an object");
        std::map<std::string, Made<Read>> found;
        for (const auto& [key, item] : value_->items()) {
            const Json name = key;
            static_cast<void>(Located(name, place_).text());
            found.emplace(key, std::invoke(read, Located(item, place_ + "." + key)));
        }
        return found;
    }

private:
    const Json* value_;
    std::string place_;
};

}  // namespace attnport::reader
