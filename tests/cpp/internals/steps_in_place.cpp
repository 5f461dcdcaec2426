// steps_in_place BUNDLE FORM COUNT ID...: continues two texts, each of these ids, by COUNT tokens. A line for each call
// of the model: `copied` where caches are new, `in place PLACES` where they were written to and moved to no other memory,
// `moved PLACES` where they were written to after a move to a larger buffer, `kept` where the runtime itself has them.
#include <cstdio>
#include <cstdint>
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

void call(const std::vector<std::string>& given) {
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
    const auto steps = [&told](const DecoderFacts& facts) { return told.steps(facts); };
    static_cast<void>(attnport::reader::generate(told.run(), steps, manifest.io, {prompt, prompt}, asked));
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
