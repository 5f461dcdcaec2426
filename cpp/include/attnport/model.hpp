// Opening a bundle's model, and running it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/error.hpp>
#include <attnport/tensor.hpp>
#include <attnport/tokenizer.hpp>

namespace attnport {

/// How a bundle is opened.
struct Options {
    /// The form to open, that one or none; empty = the first of the bundle's order that can be opened here.
    std::string form;
    /// Compute threads of a runtime on the CPU; 0 = the runtime's own choice.
    int threads = 0;
    /// Compare every file with its digest first. False trusts the disk and saves the time to read it; an engine, which
    /// is code for a device, is compared all the same.
    bool check_files = true;
    /// A public key, a PEM file from outside the bundle: open only what is signed with it; none = not checked. A path
    /// that is empty names no key, and is refused.
    std::optional<std::filesystem::path> require_signature = {};
    /// The folder for what TensorRT-RTX compiles; empty = $ATTNPORT_CACHE, else the user's own.
    std::filesystem::path cache = {};
    /// ONNX Runtime's library; empty = $ATTNPORT_ONNXRUNTIME, else what the loader finds as libonnxruntime.so.1.
    std::filesystem::path onnxruntime = {};
    /// Takes what one should know and is no error, such as a form that was passed over; empty = to stderr.
    std::function<void(const std::string&)> warn = {};
    /// Makes the ids of a text for `embed`, by a tokenizer of the application's own; empty = the bundle's, which has to
    /// be BERT's. May be called from several threads at once if `embed` is.
    Tokenize tokenize = {};
};

/// How many items are run.
struct MapOptions {
    /// The most tokens of a batch, padding included; what a call needs of memory grows with them.
    std::int64_t tokens = 1024;
    /// Of texts: the name of the prompt (`prompts`) to put before each text; none = the model's default one, if it has
    /// one; "" = no prompt.
    std::optional<std::string> prompt = {};
};

/// A document that was given to `rank`.
struct Ranked {
    std::size_t index;  ///< its place
    float score;
};

/// How a decoder with its cache continues prompts.
struct GenerateOptions {
    std::int64_t max_tokens = 64;               ///< the most new tokens of a prompt
    double temperature = 0;                     ///< 0 takes the likeliest token; above it, they are drawn
    std::int64_t top_k = 0;                     ///< draw among so many of the likeliest; 0 = all
    double top_p = 1;                           ///< draw among the likeliest that together have this probability
    std::optional<std::uint64_t> seed = {};     ///< of the draws, which are others than Python's; none = others each time
    /// Goes by the scores alone, where the model's generation config has more rules (`io().decoder->rules`): beams,
    /// penalties and the like, which only Python keeps to. Such a model is refused otherwise.
    bool ignore_rules = false;
    /// Ids behind which a text ends; none = those that the model was exported with.
    std::optional<std::vector<std::int64_t>> stop = {};
    /// Called with the prompt's number and each new token.
    std::function<void(std::size_t, std::int64_t)> on_token = {};
    /// Of a decoder behind an encoder: the inputs that are the same at every step, a row for each prompt. They are the
    /// encoder's outputs, and its padding mask where the decoder takes one; the prompts then are `io().decoder->start`.
    Inputs context = {};
};

/// A model that is open. `run` may be called from several threads at once; it is closed by its destructor.
class ATTNPORT_API Model {
public:
    /// Checks the bundle in `folder` and opens its model.
    ///
    /// A form that was never run on its device is proved first: it runs the bundle's golden cases. One that cannot run
    /// here or fails is passed over for the next of the bundle's order, with a warning and a line in `passed_over`.
    ///
    /// Throws Error: no bundle, of a version that this reader does not know, or an unknown form. IntegrityError: a
    /// file was changed, is missing or was added, or the signature is not right. RuntimeMissing: no form's runtime is
    /// there, or none in a release that the bundle takes. NumbersOff: a form computes something else here.
    explicit Model(const std::filesystem::path& folder, const Options& options = {});
    Model(Model&&) noexcept;
    Model& operator=(Model&&) noexcept;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;
    ~Model();

    /// Runs the model: every input by name, in the contract's dtypes and in CPU memory.
    ///
    /// Throws FeedError: a missing or unknown name, a wrong dtype, rank, size or value. Error: the runtime failed.
    [[nodiscard]] Outputs run(const Inputs& inputs) const;

    /// As above, of tensors such as Tokenizer::encode and `masks` make. (A template, so that braces mean Inputs.)
    template <class T, std::enable_if_t<std::is_same_v<T, Tensor>, int> = 0>
    [[nodiscard]] Outputs run(const std::vector<T>& inputs) const {
        return run(Inputs(inputs.begin(), inputs.end()));
    }

    /// Runs the model on tensors where they are, on the CPU or on the GPU of the form; outputs stay on its device.
    /// Dtypes are the file's (`file_dtype`). Values on a GPU are not looked at. Throws as `run`, and FeedError for a
    /// tensor that says another place than the model's. An address is believed where ONNX Runtime runs; TensorRT's is
    /// looked up, and one that is no memory of the GPU is a FeedError too.
    [[nodiscard]] Outputs run_device(const Inputs& inputs) const;

    /// Runs any number of items, in batches of like length; results are in the order of the items. A batch is filled up
    /// to a number of items that the model takes, and what is too much is cut off. Inputs are as those
    /// of `run`, padded to the longest item, all at the end or all at the beginning. In outputs with a row for each token,
    /// columns that are padding for all of a batch are zero.
    ///
    /// Throws as `run`, and FeedError: the model's padding masks are not [batch, seq], or it has an output without items.
    [[nodiscard]] Outputs map(const Inputs& inputs, const MapOptions& options = {}) const;

    /// As above, of tensors such as Tokenizer::encode makes.
    template <class T, std::enable_if_t<std::is_same_v<T, Tensor>, int> = 0>
    [[nodiscard]] Outputs map(const std::vector<T>& inputs, const MapOptions& options = {}) const {
        return map(Inputs(inputs.begin(), inputs.end()), options);
    }

    /// The vectors of any number of texts (UTF-8), [texts, width] in their order, by the bundle's tokenizer or
    /// `Options::tokenize`; what the model cannot hold is cut. See `map`. Of a model of sentence-transformers, they are
    /// those of its `encode`.
    ///
    /// Throws as `map`, and FeedError: there is no text, one is no UTF-8, there is no such prompt, or no output is a
    /// vector for each text. Error: the bundle has no tokenizer, or one of another kind than BERT's and there is no
    /// `Options::tokenize`.
    [[nodiscard]] Tensor embed(const std::vector<std::string>& texts, const MapOptions& options = {}) const;

    /// The scores of any number of texts, [texts] or [texts, classes] in their order, as of a classifier; with `others`,
    /// of each pair of a text and the one of `others` at its place, as of a reranker. Of a model of sentence-transformers,
    /// they are those of its `predict`; of a classifier with one logit its sigmoid, of another its logits.
    ///
    /// Throws as `embed`, and FeedError: no output is `scores` or `logits`, or there are not as many `others`.
    [[nodiscard]] Tensor predict(const std::vector<std::string>& texts, const MapOptions& options = {}) const;
    [[nodiscard]] Tensor predict(const std::vector<std::string>& texts, const std::vector<std::string>& others,
                                 const MapOptions& options = {}) const;

    /// The documents by their score for a query, the best first. Throws as `predict`, and FeedError: the model gives a
    /// score for each of several classes.
    [[nodiscard]] std::vector<Ranked> rank(const std::string& query, const std::vector<std::string>& documents,
                                           const MapOptions& options = {}) const;

    /// Continues prompts of token ids, token by token, and returns the new ones. All run as one batch, with the keys and
    /// values of earlier tokens kept; lengths may differ.
    ///
    /// Throws as `run`, and FeedError: the model does not generate, or not from these prompts, or it has rules that are not
    /// kept to here (`GenerateOptions::ignore_rules`).
    [[nodiscard]] std::vector<std::vector<std::int64_t>> generate(
        const std::vector<std::vector<std::int64_t>>& prompts, const GenerateOptions& options = {}) const;

    /// Every input that says what is padding, for items of `lengths` padded on the right to `size` (none = the
    /// longest). Throws FeedError: no padding mask, one without a rule, or lengths beyond the size.
    [[nodiscard]] std::vector<Tensor> masks(const std::vector<std::int64_t>& lengths,
                                            std::optional<std::int64_t> size = std::nullopt) const;

    // These, as all else, throw Error for a model that was moved from.
    [[nodiscard]] const std::string& name() const;     ///< the model's
    [[nodiscard]] const IO& io() const;                ///< the contract
    /// What the model expects before a text, by the text's use, as `query`; see `MapOptions::prompt`.
    [[nodiscard]] const std::map<std::string, std::string>& prompts() const;
    /// The prompt that `embed` puts before texts unless a call says otherwise; "" = none.
    [[nodiscard]] const std::string& default_prompt_name() const;
    [[nodiscard]] const std::string& form() const;     ///< the form that is open
    [[nodiscard]] const std::string& version() const;  ///< the runtime's release
    [[nodiscard]] const std::string& device() const;   ///< the device that it runs on

    /// What the form was opened with: an execution provider of ONNX Runtime, or the runtime itself. A provider that
    /// does not start is refused; operators that it lacks are computed on the CPU, which ONNX Runtime does not tell.
    [[nodiscard]] const std::string& provider() const;

    /// The dtype in the open file of an input or output: that of `run_device`. Throws Error for an unknown name.
    [[nodiscard]] DType file_dtype(std::string_view tensor) const;

    /// The forms that the bundle prefers to this one, each with the reason why it was not opened.
    [[nodiscard]] const std::vector<std::string>& passed_over() const;

private:
    struct Open;
    [[nodiscard]] Tensor rows(const TensorSpec& output, const std::vector<std::string>& texts,
                              const std::vector<std::string>* others, const MapOptions& options) const;
    [[nodiscard]] Tensor scores(const std::vector<std::string>& texts, const std::vector<std::string>* others,
                                const MapOptions& options) const;

    std::unique_ptr<Open> open_;
};

}  // namespace attnport
