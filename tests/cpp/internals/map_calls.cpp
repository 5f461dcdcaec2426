// Runs many items on a model, in a process, that are made up: those of tests/bundling/limited_memory.py.
//
// A line is a case: LENGTHS LIMIT TOKENS BASE FIRST RATE PASSING CREEP GIVES TIMES LEAST STEP, a limit of `-` for none. Answers with the shapes
// of the calls, then the elements of rows and vectors, or the message of what was thrown. A word behind the numbers says
// that the inputs are padded at the `left`, or what is wrong with them: `fewer`, `narrow`, `cuda` or `nowhere`.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <attnport/error.hpp>

#include "batches.hpp"
#include "memory_limit.hpp"

namespace {

using attnport::DType;
using attnport::Tensor;

struct Case {
    std::vector<std::int64_t> lengths;
    std::optional<std::int64_t> limit;
    std::int64_t tokens = 0;
    std::int64_t base = 0;
    std::int64_t first = 0;
    std::int64_t rate = 0;
    std::int64_t passing = 0;
    std::int64_t creep = 0;
    std::int64_t gives_back = 0;
    std::int64_t times = 0;
    std::int64_t least = 1;
    std::int64_t step = 1;
    std::string word;
};

Case read(const std::string& line) {
    std::istringstream words(line);
    std::string lengths;
    std::string limit;
    Case found;
    words >> lengths >> limit >> found.tokens >> found.base >> found.first >> found.rate >> found.passing >>
        found.creep >> found.gives_back >> found.times >> found.least >> found.step >> found.word;
    std::istringstream numbers(lengths);
    for (std::string number; std::getline(numbers, number, ',');) found.lengths.push_back(std::stoll(number));
    if (limit != "-") found.limit = std::stoll(limit);
    return found;
}

attnport::IO contract(const Case& asked) {
    const std::vector<attnport::Axis> places{"batch", "seq"};
    attnport::IO io;
    io.inputs = {{"ids", DType::Int64, places, std::nullopt}, {"mask", DType::Int64, places, std::nullopt}};
    io.outputs = {{"rows", DType::Float32, {"batch", "seq", std::int64_t{2}}, std::nullopt},
                  {"vector", DType::Float32, {"batch", std::int64_t{3}}, std::nullopt}};
    io.dims = {{"batch", asked.least, std::max(asked.least, asked.step), 64 / asked.step * asked.step, asked.step},
               {"seq", 1, 8, 512, 1}};
    io.masks = {{{"padding"}, "mask", "keep", "upper_left", 0, "mask", std::nullopt}};
    return io;
}

class Process {
public:
    explicit Process(const Case& asked) : case_(asked), used_{asked.base, asked.base} {}

    [[nodiscard]] attnport::reader::Used used() const { return used_; }
    [[nodiscard]] const std::string& shapes() const { return shapes_; }

    attnport::Outputs run(const attnport::Inputs& inputs) {
        const auto* ids = static_cast<const std::int64_t*>(inputs[0].data());
        const auto* mask = static_cast<const std::int64_t*>(inputs[1].data());
        const std::int64_t count = inputs[0].shape()[0];
        const std::int64_t size = inputs[0].shape()[1];
        shapes_ += std::to_string(count) + "x" + std::to_string(size) + " ";
        most_ = std::max(most_, count * size);
        ++calls_;
        hold(case_.passing);
        auto rows = std::make_shared<std::vector<float>>();
        auto vectors = std::make_shared<std::vector<float>>();
        for (std::int64_t item = 0; item < count; ++item) {
            std::int64_t sum = 0;
            for (std::int64_t place = 0; place < size; ++place) {
                const auto at = static_cast<std::size_t>(item * size + place);
                rows->push_back(static_cast<float>(ids[at]));
                rows->push_back(static_cast<float>(mask[at]));
                sum += ids[at] * mask[at];
            }
            vectors->insert(vectors->end(), 3, static_cast<float>(sum));
        }
        return attnport::Outputs({Tensor("rows", DType::Float32, {count, size, 2}, {rows, rows->data()}),
                                  Tensor("vector", DType::Float32, {count, 3}, {vectors, vectors->data()})});
    }

    bool give_back() {
        if (case_.gives_back == 0) return false;
        most_ = 0;
        calls_ = 0;
        hold(0);
        return true;
    }

private:
    void hold(std::int64_t passing) {
        const std::int64_t held = case_.base + case_.first + case_.rate * most_ + case_.creep * calls_;
        used_ = {held, std::max(used_.peak, held + passing)};
    }

    const Case& case_;
    attnport::reader::Used used_;
    std::int64_t most_ = 0;
    std::int64_t calls_ = 0;
    std::string shapes_;
};

/// Every element, so that one in another place is seen.
std::string digits(const Tensor& tensor) {
    std::string said;
    const auto* values = tensor.data<float>();
    for (std::size_t at = 0; at < tensor.size(); ++at) said += std::to_string(static_cast<int>(values[at])) + ",";
    return said;
}

/// The ids, with what a case has wrong.
attnport::Input ids_of(const Case& asked, const std::vector<std::int64_t>& ids, attnport::Shape shape) {
    if (asked.word == "fewer") --shape[0];
    if (asked.word == "narrow") --shape[1];
    const auto place = asked.word == "cuda" ? attnport::Place::Cuda : attnport::Place::Cpu;
    return {"ids", asked.word == "nowhere" ? nullptr : ids.data(), std::move(shape), place};
}

std::string answer(const Case& asked) {
    Process process(asked);
    attnport::reader::Learned learned;
    const attnport::IO io = contract(asked);
    const std::int64_t size = *std::max_element(asked.lengths.begin(), asked.lengths.end());
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> mask;
    for (const std::int64_t length : asked.lengths) {
        for (std::int64_t place = 0; place < size; ++place) {
            mask.push_back((asked.word == "left" ? size - 1 - place : place) < length ? 1 : 0);
            ids.push_back(static_cast<std::int64_t>(mask.size()) % 1000 * mask.back());
        }
    }
    const attnport::Shape shape{static_cast<std::int64_t>(asked.lengths.size()), size};
    const attnport::Inputs inputs{{"mask", mask, shape}, ids_of(asked, ids, shape)};
    const auto run = [&](const attnport::Inputs& part) { return process.run(part); };
    std::string said;
    try {
        for (std::int64_t time = 0; time < asked.times; ++time) {
            attnport::reader::MemoryLimit memory(
                asked.limit, learned, [&] { return process.give_back(); }, [&] { return process.used(); });
            const auto outputs = attnport::reader::mapped(run, io, inputs, asked.tokens, "", memory);
            said = digits(outputs.at("rows")) + " " + digits(outputs.at("vector"));
        }
    } catch (const attnport::FeedError& err) {
        said = err.what();
    }
    return process.shapes() + "| " + said;
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(read(line)) << '\n';
    return 0;
}
