#include "decode.hpp"

#include <algorithm>
#include <stdexcept>

#include <attnport/error.hpp>

#include "printable.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::size_t max_text = 1000;
// The largest that every reader of JSON takes for what is written.
constexpr std::int64_t max_integer = (std::int64_t{1} << 53U) - 1;

const std::int64_t* bounded(const Value& value) {
    const auto* integer = value.get<std::int64_t>();
    return integer != nullptr && *integer >= -max_integer && *integer <= max_integer ? integer : nullptr;
}

// Text reaches a terminal in messages, so control characters and the like stay out.
void check_text(const std::string& text, const Value& value, const std::string& where) {
    std::size_t letters = 0;
    bool printable = true;
    for (std::size_t at = 0; at < text.size(); ++letters) {
        const char32_t letter = next_letter(text, at);
        if (letter == 0xFFFFFFFF) throw IntegrityError(where + ": half of a surrogate pair.");
        printable = printable && is_printable(letter);
    }
    if (!printable || letters > max_text) {
        refuse(where, value, "printable text of at most " + std::to_string(max_text) + " characters");
    }
}

}  // namespace

void refuse(const std::string& where, const Value& got, const std::string& expected) {
    throw IntegrityError(where + ": got " + brief(got) + "; expected " + expected + ".");
}

Field one_of(std::string_view name, std::string& target, std::initializer_list<std::string_view> allowed) {
    std::vector<std::string> values(allowed.begin(), allowed.end());
    return {name, [&target, values = std::move(values)](const Value& value, const std::string& where) {
                const auto* text = value.get<std::string>();
                if (text == nullptr || std::find(values.begin(), values.end(), *text) == values.end()) {
                    refuse(where, value, "Literal" + listed(values));
                }
                target = *text;
            }};
}

void read_record(const Value& value, const std::string& where, const std::string& kind,
                 const std::vector<Field>& fields, const std::function<void()>& check) {
    const auto* object = value.get<Object>();
    if (object == nullptr) refuse(where, value, kind);
    const auto field = [&fields](std::string_view key) {
        return std::find_if(fields.begin(), fields.end(), [key](const Field& one) { return one.name == key; });
    };
    for (const auto& [key, item] : *object) {
        if (field(key) == fields.end()) throw IntegrityError(where + ": unknown key " + brief(Value{key}) + ".");
    }
    for (const auto& wanted : fields) {
        if (!object->has(wanted.name)) {
            throw IntegrityError(where + ": key " + quoted(wanted.name) + " is missing.");
        }
    }
    for (const auto& [key, item] : *object) {
        std::string place = where;
        if (!place.empty()) place += '.';
        field(key)->read(item, place.append(key));
    }
    if (!check) return;
    try {
        check();
    } catch (const std::invalid_argument& error) {
        throw IntegrityError(where + ": " + error.what());
    }
}

bool Kind<bool>::read(const Value& value, const std::string& where) {
    const auto* truth = value.get<bool>();
    if (truth == nullptr) refuse(where, value, words());
    return *truth;
}

std::int64_t Kind<std::int64_t>::read(const Value& value, const std::string& where) {
    const auto* integer = bounded(value);
    if (integer == nullptr) refuse(where, value, words());
    return *integer;
}

double Kind<double>::read(const Value& value, const std::string& where) {
    if (const auto* number = value.get<double>()) return *number;
    const auto* integer = bounded(value);
    if (integer == nullptr) refuse(where, value, words());
    return static_cast<double>(*integer);
}

std::string Kind<std::string>::read(const Value& value, const std::string& where) {
    const auto* text = value.get<std::string>();
    if (text == nullptr) refuse(where, value, words());
    check_text(*text, value, where);
    return *text;
}

Axis Kind<Axis>::read(const Value& value, const std::string& where) {
    if (Kind<std::string>::fits(value)) return Kind<std::string>::read(value, where);
    if (Kind<std::int64_t>::fits(value)) return Kind<std::int64_t>::read(value, where);
    refuse(where, value, words());
}

}  // namespace attnport::reader
