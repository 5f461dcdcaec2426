// Semantic search: the sentences of a file that are nearest in meaning to a question, by the embeddings of a bundle.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

using Embedding = std::vector<float>;

constexpr const char* usage = "usage: attnport-search APP SENTENCES.txt \"question\" [--top N]\n";
constexpr std::int64_t batch_size = 32;

std::vector<std::string> read_lines(const std::string& path) {
    std::ifstream file(path);
    if (!file || std::filesystem::is_directory(path)) throw attnport::Error("cannot read " + path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (!line.empty()) lines.push_back(line);
    }
    if (lines.empty()) throw attnport::Error(path + " has no sentences; expected one a line");
    return lines;
}

attnport::Tokenizer open_tokenizer(const std::string& app, const attnport::Model& model) {
    const auto path = std::filesystem::path(app) / "tokenizer.json";
    if (std::filesystem::exists(path)) return {path, model.io()};
    throw attnport::Error(app + " has no tokenizer.json, so " + model.name() + " cannot be asked in words");
}

/// The mask of a call that says which tokens are real; null where the model takes none.
const attnport::Tensor* padding_mask(const attnport::Model& model, const std::vector<attnport::Tensor>& feeds) {
    for (const attnport::Mask& mask : model.io().masks) {
        if (!mask.has("padding") || mask.carries != "mask" || mask.polarity != "keep") continue;
        for (const attnport::Tensor& tensor : feeds) {
            const bool fits = tensor.name() == mask.input && tensor.dtype() == attnport::DType::Int64;
            if (fits && tensor.shape().size() == 2) return &tensor;
        }
    }
    return nullptr;
}

/// How many texts a call takes.
attnport::Dim batch_dim(const attnport::IO& io) {
    if (io.inputs.front().dims.empty()) throw attnport::Error("input " + io.inputs.front().name + " has no batch");
    const attnport::Axis& axis = io.inputs.front().dims.front();
    for (const attnport::Dim& dim : io.dims) {
        if (axis == attnport::Axis(dim.name)) return dim;
    }
    const std::int64_t fixed = std::get<std::int64_t>(axis);
    return {"", fixed, fixed, fixed};
}

/// The output with the embeddings: one of rank 2, else the first.
const attnport::Tensor& embedding_of(const attnport::Outputs& outputs) {
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [](const attnport::Tensor& one) { return one.shape().size() == 2; });
    return found == outputs.end() ? outputs[0] : *found;
}

/// A number as it is written in every locale: an application may have set one (setlocale), which std::printf follows.
std::string fixed(float number, int digits) {
    std::array<char, 64> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed, digits);
    return {text.data(), end.ptr};
}

/// Makes the length 1, so that the dot product of two embeddings is the cosine of their angle.
void normalise(Embedding& embedding) {
    const float length = std::sqrt(std::inner_product(embedding.begin(), embedding.end(), embedding.begin(), 0.0F));
    if (!std::isnormal(length)) throw attnport::Error("an embedding has length " + fixed(length, 6));
    for (float& value : embedding) value /= length;
}

/// One embedding an item: an output [batch, hidden] as it is; of [batch, seq, hidden] the mean over the real tokens.
std::vector<Embedding> embeddings(const attnport::Tensor& output, const attnport::Tensor* mask) {
    const attnport::Shape& shape = output.shape();
    if (shape.size() != 2 && (shape.size() != 3 || mask == nullptr)) {
        throw attnport::Error("output " + output.name() + " has no embeddings; expected it to be [batch, hidden], or " +
                              "[batch, seq, hidden] of a model with an int64 padding mask");
    }
    const auto batch = static_cast<std::size_t>(shape.front());
    const auto hidden = static_cast<std::size_t>(shape.back());
    const std::size_t tokens = shape.size() == 3 ? static_cast<std::size_t>(shape[1]) : 1;
    if (shape.size() == 3 && mask->size() != batch * tokens) {
        throw attnport::Error("output " + output.name() + " is not of the tokens that the padding mask is of");
    }
    std::vector<Embedding> found(batch, Embedding(hidden));
    const float* values = output.data<float>();
    for (std::size_t row = 0; row < batch * tokens; ++row, values += hidden) {
        if (shape.size() == 3 && mask->data<std::int64_t>()[row] == 0) continue;
        Embedding& sum = found[row / tokens];  // its length does not matter: it is made 1
        std::transform(sum.begin(), sum.end(), values, sum.begin(), std::plus<>());
    }
    std::for_each(found.begin(), found.end(), normalise);
    return found;
}

std::vector<Embedding> embed(const attnport::Model& model, const attnport::Tokenizer& tokenizer,
                             const std::vector<std::string>& texts) {
    const attnport::Dim batch = batch_dim(model.io());
    const auto most = static_cast<std::size_t>(std::clamp(batch_size, batch.min, batch.max));
    std::vector<Embedding> found;
    while (found.size() < texts.size()) {
        const auto first = texts.begin() + static_cast<std::ptrdiff_t>(found.size());
        const auto count = static_cast<std::ptrdiff_t>(std::min(most, texts.size() - found.size()));
        std::vector<std::string> some(first, first + count);
        some.resize(std::max(some.size(), static_cast<std::size_t>(batch.min)), some.front());
        const auto feeds = tokenizer.encode(some);
        const attnport::Outputs outputs = model.run({feeds.begin(), feeds.end()});
        const auto more = embeddings(embedding_of(outputs), padding_mask(model, feeds));
        if (more.size() != some.size()) throw attnport::Error("the model gives no embedding for each text");
        found.insert(found.end(), more.begin(), more.begin() + count);
    }
    return found;
}

void search(const std::string& app, const std::string& file, const std::string& question, std::size_t top) {
    const std::vector<std::string> sentences = read_lines(file);
    const attnport::Model model(app);  // compares every file with its digest, then opens a form that can run here
    const attnport::Tokenizer tokenizer = open_tokenizer(app, model);
    const std::vector<Embedding> known = embed(model, tokenizer, sentences);
    const Embedding asked = embed(model, tokenizer, {question}).front();
    std::vector<std::pair<float, std::size_t>> scores;
    for (std::size_t at = 0; at < known.size(); ++at) {
        scores.emplace_back(std::inner_product(asked.begin(), asked.end(), known[at].begin(), 0.0F), at);
    }
    std::stable_sort(scores.begin(), scores.end(), [](auto& one, auto& other) { return one.first > other.first; });
    scores.resize(std::min(top, scores.size()));
    for (const auto& [score, at] : scores) std::cout << fixed(score, 4) << "  " << sentences[at] << '\n';
}

}  // namespace

int main(int count, char** values) {
    const std::vector<std::string> arguments(values + std::min(count, 1), values + count);
    std::size_t top = 3;
    bool right = arguments.size() == 3 || (arguments.size() == 5 && arguments[3] == "--top");
    if (arguments.size() == 5) {
        const char* const end = arguments[4].data() + arguments[4].size();
        const auto [at, error] = std::from_chars(arguments[4].data(), end, top);
        right = right && error == std::errc() && at == end && top > 0;
    }
    if (!right) {
        std::cerr << usage;
        return 2;
    }
    try {
        search(arguments[0], arguments[1], arguments[2], top);
        return 0;
    } catch (const attnport::Error& err) {
        std::cerr << "error: " << err.what() << '\n';
        return err.exit_code();
    } catch (const std::exception& err) {
        std::cerr << "error: not expected, please report it: " << err.what() << '\n';
        return 1;
    }
}
