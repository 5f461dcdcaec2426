// Several threads use a bundle at once; every output has the bytes that one thread alone got for it.
//
//     threads run FOLDER     they share a model and run it at several shapes
//     threads open FOLDER    each opens models of its own and runs them
//     threads race FOLDER    as run, and they count in memory that nothing guards, for ThreadSanitizer to find
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

using attnport::Model;
using attnport::Shape;

constexpr int threads = 4;
constexpr int rounds = 20;
constexpr int openings = 3;

/// The inputs of one call, and the memory that they view.
struct Call {
    std::vector<std::vector<std::int64_t>> integers;
    std::vector<std::vector<float>> floats;
    std::vector<attnport::Tensor> masks;
    attnport::Inputs inputs;
};

/// Sizes between a dim's least and largest that differ from call to call.
std::int64_t size_of(const attnport::Dim& dim, int variant) {
    const std::int64_t most = std::min<std::int64_t>(dim.max, dim.min + 12);
    return dim.min + (most - dim.min) * variant / 4;
}

std::map<std::string, std::int64_t> sizes_of(const attnport::IO& io, int variant) {
    std::map<std::string, std::int64_t> found;
    for (const attnport::Dim& dim : io.dims) found[dim.name] = size_of(dim, variant);
    return found;
}

Shape shape_of(const attnport::TensorSpec& spec, const std::map<std::string, std::int64_t>& sizes) {
    Shape found;
    for (const attnport::Axis& axis : spec.dims) {
        const auto* name = std::get_if<std::string>(&axis);
        found.push_back(name == nullptr ? std::get<std::int64_t>(axis) : sizes.at(*name));
    }
    return found;
}

/// What says where padding is, for items of different lengths; none where the model takes none.
std::vector<attnport::Tensor> masks_of(const Model& model, const Shape& shape) {
    const auto pads = [](const attnport::Mask& mask) { return mask.input && mask.has("padding"); };
    const auto& masks = model.io().masks;
    if (std::none_of(masks.begin(), masks.end(), pads)) return {};
    std::vector<std::int64_t> lengths;
    for (std::int64_t item = 0; item < shape.at(0); ++item) lengths.push_back(1 + item % shape.at(1));
    return model.masks(lengths, shape.at(1));
}

Call call_of(const Model& model, int variant) {
    Call found;
    const auto sizes = sizes_of(model.io(), variant);
    const auto& specs = model.io().inputs;
    found.integers.reserve(specs.size());
    found.floats.reserve(specs.size());
    found.masks = masks_of(model, shape_of(specs.at(0), sizes));
    for (const attnport::TensorSpec& spec : specs) {
        const auto is_it = [&spec](const attnport::Tensor& mask) { return mask.name() == spec.name; };
        const auto mask = std::find_if(found.masks.begin(), found.masks.end(), is_it);
        if (mask != found.masks.end()) {
            found.inputs.emplace_back(*mask);
            continue;
        }
        const Shape shape = shape_of(spec, sizes);
        const std::size_t count = attnport::elements(shape);
        if (spec.dtype == attnport::DType::Int64) {
            auto& values = found.integers.emplace_back(count);
            std::int64_t next = variant;
            for (std::int64_t& value : values) value = (next += 7) % spec.high.value_or(2);
            found.inputs.emplace_back(spec.name, values, shape);
        } else {
            auto& values = found.floats.emplace_back(count);
            for (std::size_t at = 0; at < count; ++at) values[at] = static_cast<float>(at % 13) / 13.0F - 0.5F;
            found.inputs.emplace_back(spec.name, values, shape);
        }
    }
    return found;
}

bool same(const attnport::Outputs& left, const attnport::Outputs& right) {
    if (left.size() != right.size()) return false;
    for (std::size_t index = 0; index < left.size(); ++index) {
        const attnport::Tensor& one = left[index];
        const attnport::Tensor& other = right[index];
        if (one.name() != other.name() || one.shape() != other.shape() || one.dtype() != other.dtype()) return false;
        if (std::memcmp(one.data(), other.data(), one.size() * attnport::size_bytes(one.dtype())) != 0) return false;
    }
    return true;
}

/// Wrong inputs fail in the thread that gave them, and nowhere else.
bool refuses(const Model& model) {
    try {
        static_cast<void>(model.run({}));
    } catch (const attnport::FeedError&) {
        return true;
    }
    return false;
}

attnport::Options one_thread() {
    attnport::Options options;
    options.threads = 1;  // so that equal calls sum in an equal order
    return options;
}

/// What a model gives for each of several calls.
struct Answers {
    explicit Answers(const Model& model) {
        for (int variant = 0; variant < 5; ++variant) {
            calls.push_back(call_of(model, variant));
            outputs.push_back(model.run(calls.back().inputs));
        }
    }

    std::vector<Call> calls;
    std::vector<attnport::Outputs> outputs;
};

/// Does `work` in every thread, with the thread's number. An exception counts as something wrong.
template <class Work> void at_once(std::atomic<int>& wrong, const Work& work) {
    std::vector<std::thread> running;
    for (int index = 0; index < threads; ++index) {
        running.emplace_back([&wrong, &work, index] {
            try {
                work(index);
            } catch (const std::exception& err) {
                std::fprintf(stderr, "%s\n", err.what());
                ++wrong;
            }
        });
    }
    for (std::thread& one : running) one.join();
}

int run(const std::string& folder, bool races) {
    const Model model(folder, one_thread());
    const Answers alone(model);
    std::atomic<int> wrong{0};
    int unguarded = 0;
    at_once(wrong, [&](int start) {
        for (int round = 0; round < rounds; ++round) {
            const auto at = static_cast<std::size_t>(start + round) % alone.calls.size();
            if (races) ++unguarded;
            if (!same(model.run(alone.calls[at].inputs), alone.outputs[at])) ++wrong;
            if (!refuses(model)) ++wrong;
        }
    });
    std::printf("%d threads, %d calls each, %d wrong\n", threads, rounds, wrong.load());
    return wrong == 0 ? 0 : 4;
}

int open(const std::string& folder) {
    std::vector<std::optional<Answers>> found(threads);
    std::atomic<int> wrong{0};
    at_once(wrong, [&](int thread) {
        for (int opening = 0; opening < openings; ++opening) {
            found.at(static_cast<std::size_t>(thread)).emplace(Model(folder, one_thread()));
        }
    });
    const Answers alone(Model(folder, one_thread()));
    for (const auto& answers : found) {
        if (!answers || !std::equal(alone.outputs.begin(), alone.outputs.end(), answers->outputs.begin(), same)) ++wrong;
    }
    std::printf("%d threads, %d openings each, %d wrong\n", threads, openings, wrong.load());
    return wrong == 0 ? 0 : 4;
}

}  // namespace

int main(int count, char** values) {
    if (count != 3) return 64;
    const std::string how = values[1];
    try {
        const int code = how == "open" ? open(values[2]) : run(values[2], how == "race");
        std::fflush(stdout);
        // ONNX Runtime gives back a mutex at the end of a process that ThreadSanitizer did not see it take.
        std::_Exit(code);
    } catch (const std::exception& err) {
        std::fprintf(stderr, "error: %s\n", err.what());
        return 1;
    }
}
