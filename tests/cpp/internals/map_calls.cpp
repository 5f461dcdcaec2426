// Runs many items on a model that is made up: that of tests/cpp/test_cpp_map.py.
//
// A line is a case: LENGTHS TOKENS LEAST STEP. Answers with the shapes of the calls, then the elements of rows and
// vectors, or the message of what was thrown. A word behind the numbers says that the inputs are padded at the `left`, or
// what is wrong with them: `fewer`, `narrow`, `cuda` or `nowhere`.
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

#include "run/batches.hpp"

namespace {

using attnport::DType;
using attnport::Tensor;

struct Case {
    std::vector<std::int64_t> lengths;
    std::int64_t tokens = 0;
    std::int64_t least = 1;
    std::int64_t step = 1;
    std::string word;
};

Case read(const std::string& line) {
    std::istringstream words(line);
    std::string lengths;
    Case found;
    words >> lengths >> found.tokens >> found.least >> found.step >> found.word;
    std::istringstream numbers(lengths);
    for (std::string number; std::getline(numbers, number, ',');) found.lengths.push_back(std::stoll(number));
    return found;
}

attnport::IO contract(const Case& asked) {
    const std::vector<attnport::Axis> places{"batch", "seq"};
    attnport::IO io;
    io.inputs = {{"ids", DType::Int64, places, std::nullopt}, {"mask", DType::Int64, places, std::nullopt}};
    io.outputs = {{"rows", DType::Float32, {"batch", "seq", std::int64_t{2}}, std::nullopt},
                  {"vector", DType::Float32, {"batch", std::int64_t{3}}, std::nullopt}};
    if (asked.word == "scores") io.outputs.push_back({"scores", DType::Float32, {"batch"}, std::nullopt});
    io.dims = {{"batch", asked.least, std::max(asked.least, asked.step), 64 / asked.step * asked.step, asked.step},
               {"seq", 1, 8, 512, 1}};
    io.masks = {{{"padding"}, "mask", "keep", "upper_left", 0, "mask", std::nullopt}};
    return io;
}

class Model {
public:
    [[nodiscard]] const std::string& shapes() const { return shapes_; }

    attnport::Outputs run(const attnport::Inputs& inputs) {
        const auto* ids = static_cast<const std::int64_t*>(inputs[0].data());
        const auto* mask = static_cast<const std::int64_t*>(inputs[1].data());
        const std::int64_t count = inputs[0].shape()[0];
        const std::int64_t size = inputs[0].shape()[1];
        shapes_ += std::to_string(count) + "x" + std::to_string(size) + " ";
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

private:
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
    Model model;
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
    const auto run = [&](const attnport::Inputs& part) { return model.run(part); };
    std::string said;
    try {
        if (asked.word == "vector" || asked.word == "scores") return attnport::reader::embedding(io).name;
        const auto outputs = attnport::reader::map_batches(run, io, inputs, asked.tokens, "");
        said = digits(outputs.at("rows")) + " " + digits(outputs.at("vector"));
    } catch (const attnport::FeedError& err) {
        said = err.what();
    }
    return model.shapes() + "| " + said;
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(read(line)) << '\n';
    return 0;
}
