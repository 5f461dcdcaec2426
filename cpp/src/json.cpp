#include "json.hpp"

#include <algorithm>
#include <clocale>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include <attnport/error.hpp>
#include <nlohmann/json.hpp>

#include "printable.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::size_t brief_letters = 60;
// An integer of more digits is cut before it is parsed: it is refused all the same, and its message is cut too.
constexpr std::size_t kept_digits = 100;
// Python turns no longer text into an integer.
constexpr std::size_t most_digits = 4300;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
// U+10FFFF, which no text should hold. Half of a surrogate pair, which JSON may hold and the parser refuses, is written
// as this mark and four hex digits before the text is parsed, and the mark itself as two of them.
constexpr std::string_view mark = "\xF4\x8F\xBF\xBF";

void check_depth(std::string_view data) {
    int depth = 0;
    bool in_text = false;
    bool escaped = false;
    for (const char byte : data) {
        if (in_text) {
            in_text = escaped || byte != '"';
            escaped = byte == '\\' && !escaped;
        } else if (byte == '"') {
            in_text = true;
        } else if (byte == '[' || byte == '{') {
            if (++depth > max_depth) throw std::invalid_argument("nested deeper than " + std::to_string(max_depth));
        } else if (byte == ']' || byte == '}') {
            --depth;
        }
    }
}

// The UTF-16 unit of an escape such as `\ud800` at `at`; -1 where there is none.
int unit_at(std::string_view data, std::size_t at) {
    if (data.size() < 6 || at > data.size() - 6 || data[at] != '\\' || data[at + 1] != 'u') return -1;
    int unit = 0;
    for (const char digit : data.substr(at + 2, 4)) {
        const bool small = digit >= 'a' && digit <= 'f';
        const bool large = digit >= 'A' && digit <= 'F';
        if (!small && !large && !(digit >= '0' && digit <= '9')) return -1;
        unit = unit * 16 + (small ? digit - 'a' + 10 : large ? digit - 'A' + 10 : digit - '0');
    }
    return unit;
}

constexpr bool is_high(int unit) noexcept { return unit >= 0xD800 && unit <= 0xDBFF; }
constexpr bool is_low(int unit) noexcept { return unit >= 0xDC00 && unit <= 0xDFFF; }

// The text as the parser can take it: see `mark` and `kept_digits`. What is no JSON stays none.
class Prepared {
public:
    explicit Prepared(std::string_view data) : data_(data) {
        text_.reserve(data.size());
        while (at_ < data_.size()) {
            if (in_text_) {
                step_in_text();
            } else {
                step_outside();
            }
        }
    }
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
    void take(std::size_t bytes) {
        text_ += data_.substr(at_, bytes);
        at_ = std::min(at_ + bytes, data_.size());
    }

    void step_outside() {
        const auto end = std::min(data_.find_first_not_of("0123456789+-.eE", at_), data_.size());
        if (end == at_) {
            in_text_ = data_[at_] == '"';
            return take(1);
        }
        const std::string_view number = data_.substr(at_, end - at_);
        const std::size_t sign = number[0] == '-' ? 1 : 0;
        const bool is_integer = number.find_first_not_of("0123456789", sign) == std::string_view::npos;
        if (is_integer && number.size() - sign > most_digits) {
            throw std::invalid_argument("an integer of more than " + std::to_string(most_digits) + " digits");
        }
        text_ += is_integer ? number.substr(0, kept_digits) : number;
        at_ = end;
    }

    void step_in_text() {
        if (data_.compare(at_, mark.size(), mark) == 0) {
            text_ += mark;
            return take(mark.size());
        }
        if (data_[at_] != '\\') {
            in_text_ = data_[at_] != '"';
            return take(1);
        }
        const int unit = unit_at(data_, at_);
        const int next = is_high(unit) ? unit_at(data_, at_ + 6) : -1;
        if (is_high(unit) && is_low(next)) {
            if (unit == 0xDBFF && next == 0xDFFF) text_ += mark;
            return take(12);
        }
        if (!is_high(unit) && !is_low(unit)) return take(2);
        text_ += mark;
        text_ += data_.substr(at_ + 2, 4);
        at_ += 6;
    }

    std::string_view data_;
    std::string text_;
    std::size_t at_ = 0;
    bool in_text_ = false;
};

// A text that was prepared, with halves of surrogate pairs in three bytes, as UTF-8 would have them if it could.
std::string restored(const std::string& text) {
    std::string result;
    std::size_t at = 0;
    for (std::size_t found = text.find(mark); found != std::string::npos; found = text.find(mark, at)) {
        result.append(text, at, found - at);
        at = found + mark.size();
        if (text.compare(at, mark.size(), mark) == 0) {
            result += mark;
            at += mark.size();
        } else {
            append_letter(result, static_cast<char32_t>(std::stoul(text.substr(at, 4), nullptr, 16)));
            at += 4;
        }
    }
    return result.append(text, at, std::string::npos);
}

std::u32string letters_of(std::string_view text) {
    std::u32string result;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t from = at;
        char32_t letter = next_letter(text, at);
        if (letter == 0xFFFFFFFF && text.size() - from >= 3) {  // a half, see restored
            const auto second = static_cast<unsigned char>(text[from + 1]);
            const auto third = static_cast<unsigned char>(text[from + 2]);
            letter = 0xD000U | (second & 0x3FU) << 6U | (third & 0x3FU);
            at = from + 3;
        }
        result.push_back(letter);
    }
    return result;
}

std::string repr(const std::string& text) { return quoted(letters_of(text), false); }

// Takes what the parser reads, and builds the tree. The parser itself would keep the last of several equal keys.
class Builder {
public:
    explicit Builder(const std::string& text) : text_(text) {}

    bool null() { return put(Value{nullptr}); }
    bool boolean(bool value) { return put(Value{value}); }
    bool number_integer(std::int64_t value) { return put(Value{value}); }
    bool number_unsigned(std::uint64_t value) {
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
            return put(Value{BigInteger{std::to_string(value)}});
        }
        return put(Value{static_cast<std::int64_t>(value)});
    }
    bool number_float(double value, const std::string& text) {
        const bool is_integer = text.find_first_of(".eE") == std::string::npos;
        return put(is_integer ? Value{BigInteger{text}} : Value{value});
    }
    bool string(const std::string& value) { return put(Value{restored(value)}); }
    template <class Binary> bool binary(const Binary& /*value*/) { return false; }  // no JSON text has any

    bool start_object(std::size_t /*size*/) {
        open_.push_back({Value{Object{}}, {}, {}});
        return true;
    }
    bool key(const std::string& name) {
        open_.back().key = restored(name);
        return true;
    }
    bool end_object() {
        if (open_.back().twice) {
            problem_ = "key " + cut(repr(*open_.back().twice), brief_letters) + " is there twice";
            return false;
        }
        return close();
    }
    bool start_array(std::size_t /*size*/) {
        open_.push_back({Value{Array{}}, {}, {}});
        return true;
    }
    bool end_array() { return close(); }

    template <class Exception>
    bool parse_error(std::size_t position, const std::string& token, const Exception& error) {
        constexpr int number_overflow = 406;
        if (error.id == number_overflow) {
            problem_ = cut(quoted(token), brief_letters) + " is out of range";
            return false;
        }
        problem_ = "no JSON at byte " + std::to_string(position);
        for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
            const std::size_t back = word[0] == '-' ? 2 : 1;  // how much of the word the parser takes before it refuses
            if (position >= back && text_.compare(position - back, word.size(), word) == 0) {
                problem_ = std::string(word) + " is not a number";
            }
        }
        return false;
    }

    [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
    [[nodiscard]] Value take() { return std::move(result_); }

private:
    struct Open {
        Value value;
        std::string key;                   // the last that was read
        std::optional<std::string> twice;  // the first that was there already
    };

    bool close() {
        Value value = std::move(open_.back().value);
        open_.pop_back();
        return put(std::move(value));
    }

    bool put(Value value) {
        if (open_.empty()) {
            result_ = std::move(value);
            return true;
        }
        Open& outer = open_.back();
        if (auto* array = std::get_if<Array>(&outer.value.value)) {
            array->push_back(std::move(value));
        } else if (!std::get<Object>(outer.value.value).add(outer.key, std::move(value)) && !outer.twice) {
            outer.twice = outer.key;
        }
        return true;
    }

    const std::string& text_;
    std::vector<Open> open_;
    std::string problem_;
    Value result_;
};

// Gives this thread the locale "C". In that of an application (setlocale) the parser writes a number with the decimal
// point of a language, which is no JSON, and stops the program where that point has more than one byte.
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

struct Repr {
    std::string& text;

    void operator()(std::nullptr_t) const { text += "None"; }
    void operator()(bool value) const { text += value ? "True" : "False"; }
    void operator()(std::int64_t value) const { text += std::to_string(value); }
    void operator()(const BigInteger& value) const { text += value.text; }
    void operator()(double value) const { text += shortest(value); }
    void operator()(const std::string& value) const { text += repr(value); }
    void operator()(const Array& items) const {
        text += '[';
        for (const auto& item : items) {
            if (&item != &items.front()) text += ", ";
            std::visit(*this, item.value);
        }
        text += ']';
    }
    void operator()(const Object& items) const {
        text += '{';
        bool first = true;
        for (const auto& [key, item] : items) {
            text += (std::exchange(first, false) ? "" : ", ") + repr(key) + ": ";
            std::visit(*this, item.value);
        }
        text += '}';
    }
};

}  // namespace

Value parse(std::string_view data, const std::string& where) {
    try {
        check_depth(data);
        if (data.substr(0, byte_order_mark.size()) == byte_order_mark) {
            throw std::invalid_argument("it starts with a byte order mark");  // which the parser would pass over
        }
        const Prepared prepared(data);
        Builder builder(prepared.text());
        const PlainLocale plain;
        if (!nlohmann::json::sax_parse(prepared.text(), &builder)) throw std::invalid_argument(builder.problem());
        if (data.find('\0') != std::string_view::npos) {
            throw std::invalid_argument("it has a zero byte");  // which the parser takes for the end
        }
        return builder.take();
    } catch (const std::invalid_argument& error) {
        throw IntegrityError(where + " is not valid: " + error.what());
    }
}

std::string repr(const Value& value) {
    std::string text;
    std::visit(Repr{text}, value.value);
    return text;
}

std::string brief(const Value& value) { return cut(repr(value), brief_letters); }

}  // namespace attnport::reader
