#include "format/json.hpp"

#include <algorithm>
#include <clocale>
#include <cstddef>
#include <new>
#include <stdexcept>

#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include <attnport/error.hpp>

#include "format/text.hpp"

namespace attnport::reader {
namespace {

constexpr std::size_t max_nesting = 32;
constexpr std::size_t max_text = 1000;
constexpr std::int64_t max_integer = (std::int64_t{1} << 53U) - 1;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// Builds the tree from what the parser reads, and refuses what the parser alone would take: a key that is there twice,
/// and an integer of more than 64 bits, of which it would keep the nearest double.
// NOLINTNEXTLINE(bugprone-exception-escape): only nlohmann's destructor may throw, where there is no memory left
class Builder {
public:
    bool null() { return put(nullptr); }
    bool boolean(bool value) { return put(value); }
    bool number_integer(std::int64_t value) { return put(value); }
    bool number_unsigned(std::uint64_t value) { return put(value); }
    bool number_float(double value, const std::string& text) {
        if (text.find_first_of(".eE") != std::string::npos) return put(value);
        throw std::invalid_argument("the integer " + cut(text) + " is out of range");
    }
    bool string(const std::string& value) { return put(value); }
    template <class Binary> bool binary(const Binary& /*value*/) { return false; }  // no JSON text has any

    bool start_object(std::size_t /*size*/) { return open(Json::object()); }
    bool start_array(std::size_t /*size*/) { return open(Json::array()); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(const std::string& name) {
        const auto [at, is_new] = open_.back()->emplace(name, nullptr);
        if (!is_new) throw std::invalid_argument("key " + quoted(cut(name)) + " is there twice");
        member_ = &*at;
        return true;
    }

    bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const Json::exception& error) {
        const std::string_view words = error.what();
        constexpr std::size_t most = 200;  // it may repeat a text of any length
        throw std::invalid_argument(escaped(cut(words.substr(words.find("] ") + 2), most)));  // behind its class's name
    }

    [[nodiscard]] Json take() { return std::move(root_); }

private:
    bool put(Json value) {
        static_cast<void>(place(std::move(value)));
        return true;
    }
    bool open(Json container) {
        if (open_.size() == max_nesting) {
            throw std::invalid_argument("nested deeper than " + std::to_string(max_nesting));
        }
        open_.push_back(place(std::move(container)));
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }
    Json* place(Json value) {
        if (open_.empty()) return &(root_ = std::move(value));
        if (open_.back()->is_object()) return &(*member_ = std::move(value));
        return &open_.back()->emplace_back(std::move(value));
    }

    Json root_;
    std::vector<Json*> open_;  ///< the containers that are not closed yet, from the outermost
    Json* member_ = nullptr;   ///< where the value of the last key belongs
};

/// Gives this thread the locale "C". In that of an application (setlocale) the parser writes a number with the decimal
/// point of a language, which is no JSON, and stops the program where that point has more than one byte.
class PlainLocale {
public:
    PlainLocale() : plain_(newlocale(LC_ALL_MASK, "C", nullptr)) {
        if (plain_ == nullptr) throw std::bad_alloc();
        before_ = uselocale(plain_);
    }
    PlainLocale(const PlainLocale&) = delete;
    PlainLocale& operator=(const PlainLocale&) = delete;
    ~PlainLocale() {
        uselocale(before_);
        freelocale(plain_);
    }

private:
    locale_t plain_;
    locale_t before_ = nullptr;
};

/// A value as a message shows it, in ASCII.
std::string shown_value(const Json& value) {
    if (value.is_object() || value.is_array()) return value.is_object() ? "an object" : "a list";
    return cut(value.dump(-1, ' ', true));
}

}  // namespace

Json parse(std::string_view data, const std::string& where) {
    try {
        // Both are no JSON, but the parser passes over the mark, and takes the zero byte for the end.
        if (data.substr(0, byte_order_mark.size()) == byte_order_mark) {
            throw std::invalid_argument("it starts with a byte order mark");
        }
        if (data.find('\0') != std::string_view::npos) throw std::invalid_argument("it has a zero byte");
        const PlainLocale plain;
        Builder builder;
        static_cast<void>(Json::sax_parse(data, &builder));
        return builder.take();
    } catch (const std::invalid_argument& error) {
        throw IntegrityError(where + " is not valid: " + error.what() + ".");
    }
}

void Located::fail(const std::string& problem) const { throw IntegrityError(place_ + ": " + problem + "."); }

void Located::expected(const std::string& what) const {
    fail("got " + shown_value(*value_) + "; expected " + what);
}

void Located::keys(std::initializer_list<std::string_view> names) const {
    if (!value_->is_object()) expected("an object");
    for (const auto& [key, item] : value_->items()) {
        if (std::find(names.begin(), names.end(), key) == names.end()) fail("unknown key " + quoted(cut(key)));
    }
    for (const std::string_view name : names) {
        if (value_->count(std::string(name)) == 0) fail("key " + quoted(name) + " is missing");
    }
}

bool Located::has(const char* key) const { return value_->is_object() && value_->count(key) != 0; }

Located Located::operator[](const char* key) const {
    if (!value_->is_object()) expected("an object");
    const auto found = value_->find(key);
    if (found == value_->end()) fail("key " + quoted(key) + " is missing");
    return {*found, place_ + "." + key};
}

bool Located::boolean() const {
    if (!value_->is_boolean()) expected("true or false");
    return value_->get<bool>();
}

std::int64_t Located::integer() const {
    if (value_->is_number_integer()) {
        // One that is not below zero may have all of 64 bits.
        const auto found = value_->get<std::int64_t>();
        const bool is_negative = !value_->is_number_unsigned();
        if (found <= max_integer && (is_negative ? found >= -max_integer : found >= 0)) return found;
    }
    expected("an integer of less than 2**53");
}

double Located::number() const {
    if (value_->is_number_float()) return value_->get<double>();
    if (!value_->is_number()) expected("a number");
    return static_cast<double>(integer());
}

std::string Located::text() const {
    if (!value_->is_string()) expected("text");
    if (!is_printable(value_->get_ref<const std::string&>())) {
        expected("printable text of at most " + std::to_string(max_text) + " characters");
    }
    return any_text();
}

std::string Located::any_text() const {
    if (!value_->is_string()) expected("text");
    const auto& found = value_->get_ref<const std::string&>();
    if (letters(found) > max_text) expected("text of at most " + std::to_string(max_text) + " characters");
    return found;
}

std::string Located::one_of(std::initializer_list<std::string_view> allowed) const {
    const bool fits = value_->is_string() && std::find(allowed.begin(), allowed.end(),
                                                       value_->get_ref<const std::string&>()) != allowed.end();
    if (!fits) expected("one of " + joined({allowed.begin(), allowed.end()}));
    return value_->get<std::string>();
}

}  // namespace attnport::reader
