#include "format/expression.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "format/text.hpp"

namespace attnport::reader {
namespace {

constexpr std::size_t max_letters = 400;
constexpr int max_depth = 16;
constexpr std::size_t max_digits = 16;
constexpr std::int64_t max_number = (std::int64_t{1} << 53) - 1;

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

bool is_letter(char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_';
}

bool fits(std::int64_t value) { return -max_number <= value && value <= max_number; }

/// First and second are at most `max_number`, so that only a product can leave 64 bits.
std::optional<std::int64_t> applied(std::string_view operation, std::int64_t first, std::int64_t second) {
    if (operation == "//" || operation == "%") {
        if (second < 1) return std::nullopt;
        const std::int64_t rest = (first % second + second) % second;
        return operation == "%" ? rest : (first - rest) / second;
    }
    if (operation == "min") return std::min(first, second);
    if (operation == "max") return std::max(first, second);
    if (operation == "*") {
        const auto size = [](std::int64_t value) { return value < 0 ? -value : value; };
        if (first != 0 && size(second) > max_number / size(first)) return std::nullopt;
        return first * second;
    }
    return operation == "+" ? first + second : first - second;
}

/// A number, a name, or an operation on the last two values.
struct Step {
    enum class Kind { number, name, operation };
    Kind kind;
    std::string_view text;
    std::int64_t number = 0;
};

/// Reads by recursive descent, with one method for each strength of operators; a problem ends the reading.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text) {
        if (text.size() > max_letters) {
            problem = "it has more than " + std::to_string(max_letters) + " letters";
            return;
        }
        next();
        sum(0);
        if (problem.empty() && !token_.empty()) problem = unexpected();
        const auto is_name = [](const Step& step) { return step.kind == Step::Kind::name; };
        if (problem.empty() && std::none_of(steps.begin(), steps.end(), is_name)) problem = "it names no dim";
    }

    std::vector<Step> steps;  ///< in the order in which they are computed, operands first
    std::string problem;

private:
    [[nodiscard]] std::string unexpected() const {
        return token_.empty() ? "it ends too early" : quoted(cut(token_, 20)) + " is not expected there";
    }

    /// Reads the next token; it is empty at the end, and one character where nothing fits.
    void next() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
        std::size_t end = std::min(at_ + 1, text_.size());
        if (at_ < text_.size() && is_digit(text_[at_])) {
            while (end < text_.size() && is_digit(text_[end])) ++end;
        } else if (at_ < text_.size() && is_letter(text_[at_])) {
            while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
        } else if (text_.substr(at_, 2) == "//") {
            end = at_ + 2;
        }
        token_ = text_.substr(at_, end - at_);
        at_ = end;
    }

    void sum(int depth) {
        product(depth);
        while (problem.empty() && (token_ == "+" || token_ == "-")) {
            const std::string_view operation = token_;
            next();
            product(depth);
            steps.push_back({Step::Kind::operation, operation});
        }
    }

    void product(int depth) {
        value(depth);
        while (problem.empty() && (token_ == "*" || token_ == "//" || token_ == "%")) {
            const std::string_view operation = token_;
            next();
            value(depth);
            steps.push_back({Step::Kind::operation, operation});
        }
    }

    void value(int depth) {
        const std::string_view token = token_;
        if (token == "(") {
            next();
            inside(depth, 1);
        } else if (!token.empty() && is_digit(token.front())) {
            number(token);
            next();
        } else if (!token.empty() && is_letter(token.front())) {
            next();
            if ((token == "min" || token == "max") && token_ == "(") {
                next();
                inside(depth, 2);
                steps.push_back({Step::Kind::operation, token});
            } else {
                steps.push_back({Step::Kind::name, token});
            }
        } else {
            problem = unexpected();
        }
    }

    void number(std::string_view digits) {
        std::int64_t value = 0;
        for (const char digit : digits.substr(0, max_digits)) value = value * 10 + (digit - '0');
        if (digits.size() > max_digits || value > max_number) problem = quoted(cut(digits, 20)) + " is beyond 2^53 - 1";
        steps.push_back({Step::Kind::number, digits, value});
    }

    /// So many expressions with commas between them, and the closing parenthesis.
    void inside(int depth, int count) {
        if (depth == max_depth) problem = "it is nested deeper than " + std::to_string(max_depth);
        for (int left = count; left > 0 && problem.empty(); --left) {
            sum(depth + 1);
            const std::string_view last = left > 1 ? "," : ")";
            if (problem.empty() && token_ != last) problem = "a " + quoted(last) + " is missing";
            next();
        }
    }

    std::string_view text_;
    std::string_view token_;
    std::size_t at_ = 0;
};

}  // namespace

std::string expression_problem(std::string_view text, const std::set<std::string>& dims) {
    const Reader reader(text);
    if (!reader.problem.empty()) return reader.problem;
    for (const Step& step : reader.steps) {
        if (step.kind == Step::Kind::name && dims.count(std::string(step.text)) == 0) {
            return "no input has " + std::string(step.text);
        }
    }
    return "";
}

std::optional<std::int64_t> value_of(std::string_view text, const SizeOf& size_of) {
    const Reader reader(text);
    if (!reader.problem.empty()) return std::nullopt;
    std::vector<std::int64_t> values;
    for (const Step& step : reader.steps) {
        std::optional<std::int64_t> value = step.number;
        if (step.kind == Step::Kind::name) value = size_of(step.text);
        if (step.kind == Step::Kind::operation) {
            const std::int64_t second = values.back();
            values.pop_back();
            value = applied(step.text, values.back(), second);
            values.pop_back();
        }
        if (!value || !fits(*value)) return std::nullopt;
        values.push_back(*value);
    }
    return values.back() < 0 ? std::nullopt : std::optional(values.back());
}

}  // namespace attnport::reader
