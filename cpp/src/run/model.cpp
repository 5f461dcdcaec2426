#include <attnport/model.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include <attnport/tokenizer.hpp>

#include "decode/generate.hpp"
#include "format/files.hpp"
#include "format/manifest.hpp"
#include "format/signature.hpp"
#include "format/text.hpp"
#include "run/batches.hpp"
#include "run/feeds.hpp"
#include "run/form.hpp"
#include "run/goldens.hpp"
#include "run/guarded.hpp"
#include "run/arrays.hpp"
#include "runtimes/cache.hpp"

namespace attnport {
namespace {

using reader::CacheFolder;
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

/// Opens the first form that can be opened, and remembers which were passed over.
class Opening {
public:
    Opening(std::filesystem::path folder, const Manifest& manifest, const Options& options,
            std::optional<CacheFolder> cache)
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
        auto opened = std::make_unique<OpenForm>(folder_, manifest_, called, options_, cache_);
        if (opened->form().proof == "device") return opened;
        const auto call = [&](const Inputs& inputs) { return opened->run(inputs); };
        reader::prove(folder_, manifest_, called, call, opened->session().machine.device);
        return opened;
    }

    /// Whether the next form may be taken: never behind a file that is not the bundled one. A form that ran on its
    /// device when it was bundled and is refused here is a fault to be seen; of one that never ran there, it is an answer
    /// to be expected.
    [[nodiscard]] bool may_pass_over(const std::string& called, const Error& err) const {
        if (dynamic_cast<const IntegrityError*>(&err) != nullptr) return false;
        if (dynamic_cast<const RuntimeMissing*>(&err) != nullptr) return true;
        return manifest_.form(called).proof != "device";
    }

    /// Numbers that are off say more than a runtime that is not here.
    [[noreturn]] void throw_worst() const {
        const std::string words = reader::joined(passed_over(), " ");
        const auto has = [&](int code) {
            const auto ended_so = [&](const Missed& one) { return one.exit_code == code; };
            return std::any_of(missed_.begin(), missed_.end(), ended_so);
        };
        if (has(4)) throw NumbersOff(words);
        if (has(2)) throw Error(words);
        throw RuntimeMissing(words);
    }

    std::filesystem::path folder_;
    const Manifest& manifest_;
    const Options& options_;
    std::optional<CacheFolder> cache_;
    std::vector<Missed> missed_;
};

}  // namespace

struct Model::Open {
    std::filesystem::path folder;
    Manifest manifest;
    std::unique_ptr<OpenForm> form;
    std::vector<std::string> passed_over;
    Tokenize tokenize;
    std::mutex lock;  ///< of what follows
    std::shared_ptr<const Tokenizer> tokenizer;

    /// The bundle's tokenizer, read at the first call. Throws Error: it has none that is read here.
    std::shared_ptr<const Tokenizer> text() {
        const std::lock_guard<std::mutex> held(lock);
        if (tokenizer == nullptr) {
            if (!manifest.tokenizer) {
                throw Error("the bundle has no tokenizer; make the inputs yourself and use map.");
            }
            tokenizer = std::make_shared<const Tokenizer>(folder / manifest.tokenizer->file, chars(), batch_io(),
                                                          tokenize, manifest.text_limit);
        }
        return tokenizer;
    }

    /// The contract of batches that are padded here.
    [[nodiscard]] IO batch_io() const {
        return form->session().wants_eights ? reader::in_eights(manifest.io) : manifest.io;
    }

    /// Empty: the bundle has none.
    [[nodiscard]] std::filesystem::path chars() const {
        return manifest.tokenizer->chars ? folder / *manifest.tokenizer->chars : std::filesystem::path();
    }
};

namespace {

/// Texts that are tokenised and sorted together.
constexpr std::size_t texts_at_once = 1024;

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
        std::optional<CacheFolder> cache;
        const auto compiles = [&](const std::string& name) { return manifest.form(name).runtime == "tensorrt_rtx"; };
        if (!options.cache.empty() || std::any_of(names.begin(), names.end(), compiles)) {
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
        const auto run = [&open](const Inputs& part) { return open.form->run(part); };
        return reader::map_batches(run, open.batch_io(), inputs, options.tokens, "");
    });
}

/// An output for any number of texts or pairs, which has a row for each.
Tensor Model::rows(const TensorSpec& output, const std::vector<std::string>& texts,
                   const std::vector<std::string>* others, const MapOptions& options) const {
    Open& open = required(open_);
    const std::string prompt = open.manifest.prompts.chosen(options.prompt);
    const auto tokenizer = open.text();
    const auto run = [&open](const Inputs& part) { return open.form->run(part); };
    if (texts.empty()) throw FeedError("texts: got none; expected one or more.");
    const IO batch_io = open.batch_io();
    std::shared_ptr<std::byte> whole;
    Shape shape;
    for (std::size_t begin = 0; begin < texts.size(); begin += texts_at_once) {
        const std::size_t end = std::min(texts.size(), begin + texts_at_once);
        const std::vector<Tensor> feeds = tokenizer->encode(texts, others, begin, end, prompt);
        const Inputs given(feeds.begin(), feeds.end());
        const Outputs found = reader::map_batches(run, batch_io, given, options.tokens, output.name);
        shape = found[0].shape();
        const std::size_t row = elements({shape.begin() + 1, shape.end()}) * size_bytes(output.dtype);
        if (whole == nullptr) whole = reader::allocate(texts.size() * row);
        if (row != 0) std::memcpy(whole.get() + begin * row, found[0].data(), (end - begin) * row);
    }
    shape[0] = static_cast<std::int64_t>(texts.size());
    return Tensor(output.name, output.dtype, std::move(shape), std::move(whole));
}

Tensor Model::embed(const std::vector<std::string>& texts, const MapOptions& options) const {
    return guarded([&] { return rows(reader::embedding(required(open_).manifest.io), texts, nullptr, options); });
}

Tensor Model::scores(const std::vector<std::string>& texts, const std::vector<std::string>* others,
                     const MapOptions& options) const {
    return guarded([&] {
        const TensorSpec& output = reader::scoring(required(open_).manifest.io);
        Tensor found = rows(output, texts, others, options);
        if (output.name != "logits" || output.dims.size() != 2 || output.dims[1] != Axis(std::int64_t{1})) return found;
        const float* const logits = found.data<float>();
        const auto shares = std::make_shared<std::vector<float>>(texts.size());
        std::transform(logits, logits + texts.size(), shares->begin(), [](float x) { return 1 / (1 + std::exp(-x)); });
        const float* const data = shares->data();
        return Tensor(output.name, output.dtype, {static_cast<std::int64_t>(texts.size())}, {shares, data});
    });
}

Tensor Model::predict(const std::vector<std::string>& texts, const MapOptions& options) const {
    return scores(texts, nullptr, options);
}

Tensor Model::predict(const std::vector<std::string>& texts, const std::vector<std::string>& others,
                      const MapOptions& options) const {
    return scores(texts, &others, options);
}

std::vector<Ranked> Model::rank(const std::string& query, const std::vector<std::string>& documents,
                                const MapOptions& options) const {
    if (documents.empty()) return {};
    return guarded([&] {
        const Tensor found = predict(std::vector<std::string>(documents.size(), query), documents, options);
        if (found.size() != documents.size()) {
            throw FeedError("rank: got the output " + found.name() + ", with a score for each class; expected one.");
        }
        std::vector<Ranked> ranked;
        const float* const scores = found.data<float>();
        for (std::size_t at = 0; at < documents.size(); ++at) ranked.push_back({at, scores[at]});
        std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.score > b.score; });
        return ranked;
    });
}

std::vector<std::vector<std::int64_t>> Model::generate(const std::vector<std::vector<std::int64_t>>& prompts,
                                                       const GenerateOptions& options) const {
    return guarded([&] {
        Open& open = required(open_);
        const auto run = [&open](const Inputs& inputs) { return open.form->run(inputs); };
        const auto steps = [&open](const reader::DecoderFacts& facts) { return open.form->new_steps(facts); };
        return reader::generate(run, steps, open.manifest.io, prompts, options);
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
