#include <attnport/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include <attnport/tokenizer.hpp>

#include "batches.hpp"
#include "cache.hpp"
#include "feeds.hpp"
#include "files.hpp"
#include "generation.hpp"
#include "goldens.hpp"
#include "guarded.hpp"
#include "manifest.hpp"
#include "memory.hpp"
#include "memory_limit.hpp"
#include "open_form.hpp"
#include "signature.hpp"
#include "words.hpp"

namespace attnport {
namespace {

using reader::Cache;
using reader::Form;
using reader::guarded;
using reader::Manifest;
using reader::OpenForm;

void to_stderr(const std::string& words) {
    // A warning that cannot be written is no reason not to go on.
    static_cast<void>(std::fprintf(stderr, "attnport_bundle: %s\n", words.c_str()));
}

void check_options(const Options& options) {
    if (options.threads < 0) {
        throw Error("threads: got " + std::to_string(options.threads) + "; expected 0 or more.");
    }
}

std::vector<std::string> candidates(const Manifest& manifest, const std::string& asked) {
    if (asked.empty()) return manifest.order;
    if (manifest.forms.count(asked) != 0) return {asked};
    throw Error("form " + reader::quoted(asked) + ": the bundle has " + reader::joined(manifest.order) + ".");
}

/// Whether a form that may be opened has anything to keep between processes.
bool keeps(const Manifest& manifest, const std::vector<std::string>& names, const Options& options) {
    for (const auto& called : names) {
        const Form& form = manifest.form(called);
        if (form.proof != "device" || form.is_engine()) return true;
        for (const auto& provider : options.providers) {
            if (form.provider && provider != *form.provider) return true;
        }
    }
    return false;
}

/// Opens the first form that can be opened, and remembers which were passed over.
class Opening {
public:
    Opening(std::filesystem::path folder, const Manifest& manifest, const Options& options, std::optional<Cache> cache)
        : folder_(std::move(folder)), manifest_(manifest), options_(options), cache_(std::move(cache)) {}

    std::unique_ptr<OpenForm> first(const std::vector<std::string>& names) {
        for (const auto& called : names) {
            try {
                return proved(called);
            } catch (const Error& err) {
                if (!may_pass_over(called, err)) throw;
                missed_.push_back({called + ": " + err.what(), err.exit_code(), std::current_exception()});
            }
        }
        if (missed_.size() == 1) std::rethrow_exception(missed_[0].error);
        throw_worst();
    }

    [[nodiscard]] std::vector<std::string> passed_over() const {
        std::vector<std::string> found;
        for (const auto& missed : missed_) found.push_back(missed.words);
        return found;
    }

private:
    struct Missed {
        std::string words;
        int exit_code;
        std::exception_ptr error;
    };

    std::unique_ptr<OpenForm> proved(const std::string& called) {
        proving_ = false;
        auto opened = std::make_unique<OpenForm>(folder_, manifest_, called, options_, cache_);
        if (!opened->to_be_proved()) return opened;
        proving_ = true;
        const auto& session = opened->session();
        reader::prove(folder_, manifest_, called, [&](const Inputs& inputs) { return opened->run(inputs); },
                      session.provider, session.version, session.machine, cache_, options_.check_files);
        return opened;
    }

    /// Whether the next form may be taken: never behind a file that is not the bundled one. A form that ran on its
    /// device when it was bundled and is refused here is a fault to be seen; of one that never ran there, or runs on
    /// another provider, it is an answer to be expected.
    [[nodiscard]] bool may_pass_over(const std::string& called, const Error& err) const {
        if (dynamic_cast<const IntegrityError*>(&err) != nullptr) return false;
        if (dynamic_cast<const RuntimeMissing*>(&err) != nullptr) return true;
        return proving_ || manifest_.form(called).proof != "device";
    }

    /// Numbers that are off say more than a runtime that is not here.
    [[noreturn]] void throw_worst() const {
        const std::string words = reader::joined(passed_over(), " ");
        for (const int code : {4, 2}) {
            for (const auto& missed : missed_) {
                if (missed.exit_code != code) continue;
                if (code == 4) throw NumbersOff(words);
                throw Error(words);
            }
        }
        throw RuntimeMissing(words);
    }

    std::filesystem::path folder_;
    const Manifest& manifest_;
    const Options& options_;
    std::optional<Cache> cache_;
    std::vector<Missed> missed_;
    bool proving_ = false;
};

}  // namespace

struct Model::Open {
    std::filesystem::path folder;
    Manifest manifest;
    std::unique_ptr<OpenForm> form;
    std::vector<std::string> passed_over;
    std::mutex lock;  ///< of what follows
    reader::Learned learned;
    Tokenize tokenize;
    std::shared_ptr<const Tokenizer> tokenizer;

    /// The bundle's tokenizer, read at the first call. Throws Error: it has none that is read here.
    std::shared_ptr<const Tokenizer> text() {
        const std::lock_guard<std::mutex> held(lock);
        if (tokenizer == nullptr) {
            if (!manifest.tokenizer) {
                throw Error("the bundle has no tokenizer; make the inputs yourself and use map.");
            }
            tokenizer = std::make_shared<const Tokenizer>(folder / *manifest.tokenizer, manifest.io, tokenize,
                                                          manifest.text_limit);
        }
        return tokenizer;
    }
};

namespace {

/// What is known of a model, for one call: others may run beside it.
class Lent {
public:
    Lent(std::mutex& lock, reader::Learned& learned) : lock_(lock), learned_(learned) {
        const std::lock_guard<std::mutex> held(lock_);
        own = learned_;
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() {
        const std::lock_guard<std::mutex> held(lock_);
        learned_ = own;
    }

    reader::Learned own;

private:
    std::mutex& lock_;
    reader::Learned& learned_;
};

/// A model that was moved from has nothing open.
template <class Opened> Opened& required(const std::unique_ptr<Opened>& open) {
    if (open == nullptr) throw Error("the model is closed.");
    return *open;
}

}  // namespace

Model::Model(const std::filesystem::path& given, const Options& options) {
    guarded([&] {
        check_options(options);
        const std::filesystem::path folder = reader::not_empty(given);
        const auto& warn = options.warn ? options.warn : reader::Warn(to_stderr);
        auto open = std::make_unique<Open>();
        open->folder = folder;
        open->tokenize = options.tokenize;
        open->manifest = reader::read_trusted(folder, options.require_signature).manifest;
        const Manifest& manifest = open->manifest;
        if (options.check_files) reader::require_files(folder, manifest);
        const auto names = candidates(manifest, options.form);
        std::optional<Cache> cache;
        if (!options.cache.empty() || keeps(manifest, names, options)) {
            cache = reader::find_cache(folder, options.cache, warn);
        }
        Opening opening(folder, manifest, options, std::move(cache));
        open->form = opening.first(names);
        open->passed_over = opening.passed_over();
        if (!open->passed_over.empty()) {
            warn(open->form->name() + " runs; passed over: " + reader::joined(open->passed_over, " "));
        }
        open_ = std::move(open);
    });
}

Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Outputs Model::run(const Inputs& inputs) const {
    return guarded([&] { return required(open_).form->run(inputs); });
}

Outputs Model::run_device(const Inputs& inputs) const {
    return guarded([&] { return required(open_).form->run_device(inputs); });
}

Outputs Model::map(const Inputs& inputs, const MapOptions& options) const {
    return guarded([&] {
        Open& open = required(open_);
        Lent known(open.lock, open.learned);
        reader::MemoryLimit memory(options.max_memory_bytes, known.own, [&open] { return open.form->give_back(); });
        const auto run = [&open](const Inputs& part) { return open.form->run(part); };
        return reader::mapped(run, open.manifest.io, inputs, options.tokens, "", memory);
    });
}

Tensor Model::embed(const std::vector<std::string>& texts, const MapOptions& options) const {
    return guarded([&] {
        Open& open = required(open_);
        const TensorSpec& output = reader::embedding(open.manifest.io);
        const std::string prompt = open.manifest.prompts.chosen(options.prompt);
        const auto tokenizer = open.text();
        Lent known(open.lock, open.learned);
        reader::MemoryLimit memory(options.max_memory_bytes, known.own, [&open] { return open.form->give_back(); });
        const auto run = [&open](const Inputs& part) { return open.form->run(part); };
        if (texts.empty()) throw FeedError("texts: got none; expected one or more.");
        std::shared_ptr<std::byte> whole;
        const DType dtype = output.dtype;
        Shape shape{static_cast<std::int64_t>(texts.size()), 0};
        for (std::size_t begin = 0; begin < texts.size(); begin += reader::window) {
            const std::size_t end = std::min(texts.size(), begin + reader::window);
            const std::vector<Tensor> feeds = tokenizer->encode(texts, begin, end, prompt);
            const Inputs given(feeds.begin(), feeds.end());
            const Outputs found = reader::mapped(run, open.manifest.io, given, options.tokens, output.name, memory);
            shape[1] = found[0].shape()[1];
            const std::size_t row = static_cast<std::size_t>(shape[1]) * size_bytes(dtype);
            if (whole == nullptr) {
                memory.require(static_cast<std::int64_t>(texts.size() * row), "what all texts give");
                whole = reader::allocate(texts.size() * row);
            }
            if (row != 0) std::memcpy(whole.get() + begin * row, found[0].data(), (end - begin) * row);
        }
        return Tensor(output.name, dtype, std::move(shape), std::move(whole));
    });
}

std::vector<std::vector<std::int64_t>> Model::generate(const std::vector<std::vector<std::int64_t>>& prompts,
                                                       const GenerateOptions& options) const {
    return guarded([&] {
        Open& open = required(open_);
        const auto run = [&open](const Inputs& inputs) { return open.form->run(inputs); };
        const auto steps = [&open](const reader::Roles& roles) { return open.form->new_steps(roles); };
        return reader::generated(run, steps, open.manifest.io, prompts, options);
    });
}

std::vector<Tensor> Model::masks(const std::vector<std::int64_t>& lengths, std::optional<std::int64_t> size) const {
    return guarded([&] { return reader::padding_masks(required(open_).manifest.io, lengths, size); });
}

const std::string& Model::name() const { return required(open_).manifest.name; }
const IO& Model::io() const { return required(open_).manifest.io; }
const std::map<std::string, std::string>& Model::prompts() const { return required(open_).manifest.prompts.named; }
const std::string& Model::default_prompt_name() const { return required(open_).manifest.prompts.default_name; }
const std::string& Model::form() const { return required(open_).form->name(); }
const std::string& Model::provider() const { return required(open_).form->session().provider; }
const std::string& Model::version() const { return required(open_).form->session().version; }
const std::string& Model::device() const { return required(open_).form->session().machine.device; }
const std::vector<std::string>& Model::passed_over() const { return required(open_).passed_over; }

DType Model::file_dtype(std::string_view tensor) const {
    const auto& dtypes = required(open_).form->form().dtypes;
    const auto found = dtypes.find(std::string(tensor));
    if (found != dtypes.end()) return found->second;
    throw Error("tensor " + reader::quoted(tensor) + ": the model has no such input or output.");
}

}  // namespace attnport
