// Calls the checks of inputs, the making of masks, and the casts, of a contract that is described on stdin.
//
// A line is a command and its words; names are hexadecimal digits, as are data (`.` for none, `-` for no memory).
// `check`, `masks`, `cast` and `release` answer with one line: the exit code and the message of what was thrown, else
// what came out.
//
//     reset | dim NAME MIN MAX | input NAME DTYPE AXES HIGH | mask NAME KINDS POLARITY CARRIES KEYS
//     feed NAME DTYPE SHAPE DATA | check | masks LENGTHS SIZE | cast FROM TO DATA | release TEXT
#include <cstdint>
#include <iostream>
#include <iterator>
#include <list>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <attnport/error.hpp>

#include "../hexadecimal.hpp"
#include "run/feeds.hpp"
#include "run/arrays.hpp"
#include "runtimes/session.hpp"

namespace {

using attnport::DType;

constexpr const char* nothing = "-";

DType dtype_of(const std::string& word) {
    for (int number = 0; number <= static_cast<int>(DType::BFloat16); ++number) {
        const auto dtype = static_cast<DType>(number);
        if (attnport::name(dtype) == word) return dtype;
    }
    throw std::invalid_argument(word);
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream stream(text == nothing ? "" : text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

std::vector<std::int64_t> numbers(const std::string& text) {
    std::vector<std::int64_t> found;
    for (const auto& part : split(text)) found.push_back(std::stoll(part));
    return found;
}

/// Memory that ends where the data does, so that a sanitizer sees a read behind it.
struct Feed {
    std::string name;
    DType dtype;
    attnport::Shape shape;
    std::vector<std::uint64_t> whole;
    const void* data;
};

struct State {
    attnport::IO io;
    std::list<Feed> feeds;
};

using Words = std::vector<std::string>;

std::string answer(const attnport::Tensor& tensor) {
    std::string line = hexadecimal::digits(tensor.name()) + " " + std::string(attnport::name(tensor.dtype())) + " ";
    for (const auto size : tensor.shape()) line += std::to_string(size) + ",";
    const auto* bytes = static_cast<const char*>(tensor.data());
    return line + " " + hexadecimal::digits({bytes, tensor.size() * attnport::size_bytes(tensor.dtype())});
}

attnport::Axis axis(const std::string& word) {
    if (word.front() == '#') return static_cast<std::int64_t>(std::stoll(word.substr(1)));
    return hexadecimal::bytes(word);
}

void add_input(State& state, const Words& words) {
    attnport::TensorSpec spec;
    spec.name = hexadecimal::bytes(words.at(1));
    spec.dtype = dtype_of(words.at(2));
    for (const auto& part : split(words.at(3))) spec.dims.push_back(axis(part));
    if (words.at(4) != nothing) spec.high = std::stoll(words.at(4));
    state.io.inputs.push_back(std::move(spec));
}

void add_mask(State& state, const Words& words) {
    attnport::Mask mask;
    if (words.at(1) != nothing) mask.input = hexadecimal::bytes(words.at(1));
    mask.kinds = split(words.at(2));
    mask.polarity = words.at(3);
    mask.carries = words.at(4);
    if (words.at(5) != nothing) mask.keys = hexadecimal::bytes(words.at(5));
    state.io.masks.push_back(std::move(mask));
}

void add_feed(State& state, const Words& words) {
    Feed feed{hexadecimal::bytes(words.at(1)), dtype_of(words.at(2)), numbers(words.at(3)), {}, nullptr};
    const std::string bytes = words.at(4) == nothing ? "" : hexadecimal::bytes(words.at(4));
    feed.whole.resize((bytes.size() + 7) / 8);
    const std::size_t room = feed.whole.size() * 8 - bytes.size();
    auto* start = reinterpret_cast<char*>(feed.whole.data()) + room;
    std::copy(bytes.begin(), bytes.end(), start);
    feed.data = words.at(4) == nothing ? nullptr : start;
    state.feeds.push_back(std::move(feed));
}

std::string checked(const State& state) {
    attnport::Inputs inputs;
    for (const auto& feed : state.feeds) inputs.emplace_back(feed.name, feed.data, feed.dtype, feed.shape);
    std::string line = "fits";
    for (const auto* input : attnport::reader::check_inputs(state.io, inputs)) {
        line += " " + hexadecimal::digits(input->name());
    }
    return line;
}

std::string masks(const State& state, const Words& words) {
    std::optional<std::int64_t> size;
    if (words.at(2) != nothing) size = std::stoll(words.at(2));
    std::string line = "masks";
    for (const auto& mask : attnport::reader::padding_masks(state.io, numbers(words.at(1)), size)) {
        line += " " + answer(mask);
    }
    return line;
}

std::string cast(const Words& words) {
    const std::string bytes = hexadecimal::bytes(words.at(3));
    const DType from = dtype_of(words.at(1));
    const auto count = static_cast<std::int64_t>(bytes.size() / attnport::size_bytes(from));
    const attnport::Input input("x", bytes.data(), from, {count});
    return answer(attnport::reader::cast(input, dtype_of(words.at(2))));
}

std::string release(const Words& words) {
    std::string line = "release";
    for (const auto number : attnport::reader::release(words.at(1))) line += " " + std::to_string(number);
    return line;
}

/// What a line answers with; empty where it only adds something.
std::string obeyed(State& state, const Words& words) {
    const std::string& command = words.at(0);
    if (command == "check") return checked(state);
    if (command == "masks") return masks(state, words);
    if (command == "cast") return cast(words);
    if (command == "release") return release(words);
    if (command == "reset") state = State();
    if (command == "dim") {
        state.io.dims.push_back({hexadecimal::bytes(words.at(1)), std::stoll(words.at(2)), std::stoll(words.at(2)),
                                 std::stoll(words.at(3)), std::stoll(words.at(4))});
    }
    if (command == "input") add_input(state, words);
    if (command == "mask") add_mask(state, words);
    if (command == "feed") add_feed(state, words);
    return "";
}

}  // namespace

int main() {
    State state;
    for (std::string line; std::getline(std::cin, line);) {
        std::stringstream stream(line);
        const Words words{std::istream_iterator<std::string>(stream), {}};
        std::string said;
        try {
            said = obeyed(state, words);
        } catch (const attnport::Error& err) {
            said = std::to_string(err.exit_code()) + " " + err.what();
        }
        if (!said.empty()) std::cout << said << '\n';
    }
    return 0;
}
