// `bundle.json`: the manifest of a bundle, read strictly. The meaning of every key is in FORMAT.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/contract.hpp>

namespace attnport::reader {

inline constexpr std::string_view manifest_name = "bundle.json";
inline constexpr std::string_view format_name = "attnport-bundle";
inline constexpr std::int64_t format_version = 1;
inline constexpr std::size_t max_manifest_bytes = 4U << 20U;

/// The size and SHA-256 (hex) of a file.
struct File {
    std::int64_t bytes = 0;
    std::string sha256;
};

/// What a form needs to be opened; see FORMAT.md.
struct Requires {
    std::string runtime;
    bool exact = false;
    std::optional<std::int64_t> opset;
    std::vector<std::int64_t> sm;
};

/// An optimization profile: a range, inside the model's own, for every named dim, in the contract's order.
struct Profile {
    std::vector<Dim> dims;
};

/// The verdicts of parity: PASS or NOT_RUN.
struct Parity {
    std::string verdict;
    std::string runtime;
    std::string graph;
};

/// A model file or an engine, the runtime that opens it, and what was found about it.
struct Form {
    std::string file;
    std::vector<std::string> external;
    std::string plan;
    std::string runtime;  ///< onnxruntime, openvino, tensorrt or tensorrt_rtx
    std::optional<std::string> provider;
    std::map<std::string, DType> dtypes;  ///< of every input and output, in the file
    std::vector<Profile> profiles;
    Requires requires_;
    std::string proof;  ///< device or graph-only
    Parity parity;

    /// Whether its file is an engine: for one version and certain devices.
    [[nodiscard]] bool is_engine() const { return runtime == "tensorrt" || runtime == "tensorrt_rtx"; }
};

/// How far one output of one golden case may be from the float64 reference at a plan, over its valid elements.
struct Bound {
    std::string case_;
    std::string output;
    std::string plan;
    double rms_bound = 0;
    double max_bound = 0;
};

/// The file with golden inputs and outputs, and the bounds.
struct GoldenRecord {
    std::string file;
    std::vector<Bound> bounds;
};

/// What a model expects before a text, by the text's use.
struct Prompts {
    std::map<std::string, std::string> named;
    std::string default_name;  ///< of the one before every text for which no other was chosen; "" = none

    /// The prompt of a name: none = the default one, "" = no prompt. Throws FeedError: there is no such prompt.
    [[nodiscard]] std::string chosen(const std::optional<std::string>& name) const;
};

/// The tokenizer's file, and what it makes of characters, for a reader without the package `tokenizers`.
struct TokenizerFiles {
    std::string file;
    std::optional<std::string> chars;
};

/// `bundle.json`, but for what no reader needs to run the model: `attnport verify` reads provenance, fusion and the
/// numbers of parity.
struct Manifest {
    std::string name;
    bool unverified = false;
    IO io;
    std::vector<std::string> order;
    std::map<std::string, Form> forms;
    GoldenRecord goldens;
    std::optional<TokenizerFiles> tokenizer;
    std::map<std::string, File> files;
    Prompts prompts;
    std::optional<std::int64_t> text_limit;  ///< the most tokens of a text for an embedder
    std::string digest;  ///< the SHA-256 (hex) of the bytes it was read from

    /// The form of that name, which `order` has.
    [[nodiscard]] const Form& form(const std::string& wanted) const { return forms.at(wanted); }
};

/// Reads a manifest. Throws Error: of another format or version; IntegrityError: malformed, or names what it must not,
/// with the place in the file, what was got and what is expected.
[[nodiscard]] Manifest from_bytes(std::string_view data, const std::string& where);

/// The bytes of the manifest in `folder`, not looked into. Throws Error: no bundle; IntegrityError: a link, too large.
[[nodiscard]] std::string read_bytes(const std::filesystem::path& folder);

}  // namespace attnport::reader
