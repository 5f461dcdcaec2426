// steps_in_place [carried] BUNDLE FORM COUNT ID...: continues two texts, each of these ids, by COUNT tokens. A line for each
// call of the model: `copied` where caches are new, `in place PLACES` where they were written to and moved to no other
// memory, `moved PLACES` where they were written to after a move to a larger buffer, `kept` where the runtime itself has
// them. With `carried`, caches stay where the model has put them, as on a device: `carried CACHES`, how many are the very
// memory of the call before, and the tokens at the end.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <attnport/model.hpp>

#include "decode/generate.hpp"
#include "format/manifest.hpp"
#include "run/form.hpp"

namespace {

using attnport::Inputs;
using attnport::Outputs;
using attnport::reader::Buffer;
using attnport::reader::DecoderFacts;
using attnport::reader::Steps;

/// Caches that the runtime has, told as they are used.
class Kept final : public Steps {
public:
    explicit Kept(std::unique_ptr<Steps> steps) : steps_(std::move(steps)) {}
    void begin(std::vector<attnport::Tensor> caches) override { steps_->begin(std::move(caches)); }
    Outputs run(Inputs inputs) override {
        std::puts("kept");
        return steps_->run(std::move(inputs));
    }
    void drop(std::int64_t count) override { steps_->drop(count); }

private:
    std::unique_ptr<Steps> steps_;
};

/// The model's own calls, told as they come.
class Told {
public:
    explicit Told(const attnport::reader::OpenForm& form) : form_(form), step_(form.step()) {}

    [[nodiscard]] attnport::reader::Run run() const {
        return [this](const Inputs& inputs) {
            std::puts("copied");
            return form_.run(inputs);
        };
    }

    [[nodiscard]] std::unique_ptr<Steps> carried(const DecoderFacts& facts) {
        const auto step = [this](const Inputs& inputs, const std::vector<std::string>& kept) {
            std::size_t same = 0;
            for (const auto& input : inputs) {
                same += static_cast<std::size_t>(std::count(places_.begin(), places_.end(), input.data()));
            }
            std::printf("carried %zu\n", same);
            Outputs outputs = form_.run_keeping(inputs, kept);
            places_.clear();
            for (const std::string& name : kept) places_.push_back(outputs.at(name).data());
            return outputs;
        };
        return std::make_unique<attnport::reader::Carried>(step, facts);
    }

    [[nodiscard]] std::unique_ptr<Steps> steps(const DecoderFacts& facts) {
        if (step_) return std::make_unique<attnport::reader::Buffers>(step(), facts);
        std::unique_ptr<Steps> made = form_.new_steps(facts);
        if (made == nullptr) return nullptr;
        return std::make_unique<Kept>(std::move(made));
    }

private:
    [[nodiscard]] attnport::reader::StepInPlace step() {
        return [this](const Inputs& inputs, const std::vector<Buffer>& buffers) {
            std::vector<const void*> places;
            for (const Buffer& buffer : buffers) places.push_back(buffer.memory.data());
            std::printf("%s %lld\n", places == places_ ? "in place" : "moved",
                        static_cast<long long>(buffers.at(0).memory.shape().at(2)));
            places_ = places;
            return step_(inputs, buffers);
        };
    }

    const attnport::reader::OpenForm& form_;
    attnport::reader::StepInPlace step_;
    std::vector<const void*> places_;
};

void call(std::vector<std::string> given) {
    const bool carried = given.at(0) == "carried";
    if (carried) given.erase(given.begin());
    const attnport::reader::Manifest manifest =
        attnport::reader::from_bytes(attnport::reader::read_bytes(given.at(0)), given.at(0));
    attnport::Options options;
    options.threads = 1;
    const attnport::reader::OpenForm form(given.at(0), manifest, given.at(1), options, std::nullopt);
    Told told(form);
    attnport::GenerateOptions asked;
    asked.max_tokens = std::stoll(given.at(2));
    asked.stop = std::vector<std::int64_t>{};
    std::vector<std::int64_t> prompt;
    for (std::size_t at = 3; at < given.size(); ++at) prompt.push_back(std::stoll(given[at]));
    const auto steps = [&](const DecoderFacts& facts) { return carried ? told.carried(facts) : told.steps(facts); };
    const auto texts = attnport::reader::generate(told.run(), steps, manifest.io, {prompt, prompt}, asked);
    if (!carried) return;
    for (const std::int64_t token : texts.at(1)) std::printf("%lld\n", static_cast<long long>(token));
}

}  // namespace

int main(int count, char** values) {
    try {
        call({values + 1, values + count});
        return 0;
    } catch (const std::exception& err) {
        std::fprintf(stderr, "not expected: %s\n", err.what());
        return 1;
    }
}
