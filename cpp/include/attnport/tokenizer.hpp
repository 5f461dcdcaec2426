// Text into the inputs of a model, as its contract asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/error.hpp>

namespace attnport {

class Model;

/// An application's own tokenizer: the ids of a text (UTF-8), with the special tokens around it, and at most `longest` of
/// them. It cuts a text that is too long, as only it knows the special tokens that stay behind it.
using Tokenize = std::function<std::vector<std::int64_t>(const std::string& text, std::int64_t longest)>;

/// Fills every input of a text model: token ids, type ids, and what says where padding is. BERT's tokenizers, or ids that
/// an application makes.
class ATTNPORT_API Tokenizer {
public:
    /// Reads the bundle's `tokenizer.json` and `tokenizer.chars`, for the contract of the model that is to be fed. With
    /// `tokenize`, `chars` is not read, the ids are those that it makes, type ids are 0, and of the file only the side and
    /// the id of padding and the special tokens are read. `limit` is the most tokens of a text, if that is fewer than the
    /// model takes.
    ///
    /// Throws Error: the file is of another kind than BERT's and there is no `tokenize`, or the model reads no text. What
    /// was moved from is only to be destroyed or assigned to; its `encode` throws Error.
    Tokenizer(const std::filesystem::path& path, const std::filesystem::path& chars, const IO& io,
              Tokenize tokenize = {}, std::optional<std::int64_t> limit = {});
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;
    ~Tokenizer();

    /// One row a text (UTF-8), padded to the longest on the side that the file says; what the model cannot hold is cut.
    /// `prompt` is put before each text; the model does not pool its tokens if it takes a `pooled_mask`.
    ///
    /// Throws FeedError: no text, one that is no UTF-8, or several lengths for a model that takes no padding mask; or the
    /// application's tokenizer gave too many ids.
    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts,
                                             const std::string& prompt = {}) const;

    /// As `encode`, one row a pair of a text and the one of `others` at its place, such as a query and a document. Of a
    /// pair that is too long, the shorter text is cut to no less than half. `prompt` stands before the first text.
    ///
    /// Throws FeedError: there are not as many `others`, or the application has a tokenizer of its own; else as `encode`.
    [[nodiscard]] std::vector<Tensor> encode_pairs(const std::vector<std::string>& texts,
                                                   const std::vector<std::string>& others,
                                                   const std::string& prompt = {}) const;

private:
    friend class Model;  // which reads many texts in parts
    struct Rules;
    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts,
                                             const std::vector<std::string>* others, std::size_t begin, std::size_t end,
                                             const std::string& prompt) const;

    std::unique_ptr<Rules> rules_;
};

}  // namespace attnport
