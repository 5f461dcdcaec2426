// Text into the inputs of a model, as its contract asks for them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/error.hpp>

namespace attnport {

class Model;

/// Fills every input of a text model: token ids, type ids, and what says where padding is. BERT's tokenizers only.
class ATTNPORT_API Tokenizer {
public:
    /// Reads the bundle's `tokenizer.json`, for the contract of the model that is to be fed.
    ///
    /// Throws Error: the file is of another kind, or the model reads no text. What was moved from is only to be
    /// destroyed or assigned to; its `encode` throws Error.
    Tokenizer(const std::filesystem::path& path, const IO& io);
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;
    ~Tokenizer();

    /// One row a text (UTF-8), padded on the right to the longest; what the model cannot hold is cut at its end.
    ///
    /// Throws FeedError: no text, one that is no UTF-8, or several lengths for a model that takes no padding mask.
    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts) const;

private:
    friend class Model;  // which reads many texts in parts
    struct Rules;
    [[nodiscard]] std::vector<Tensor> encode(const std::vector<std::string>& texts, std::size_t begin,
                                             std::size_t end) const;

    std::unique_ptr<Rules> rules_;
};

}  // namespace attnport
