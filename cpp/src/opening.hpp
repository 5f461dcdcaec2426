// One form of a bundle, opened: what it requires first, then the file itself, then its runtime, then the contract.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/model.hpp>

#include "cache.hpp"
#include "manifest.hpp"
#include "session.hpp"

namespace attnport::reader {

/// Opens the form `name`. A release, provider or device that does not fit is RuntimeMissing; a file that is not what
/// the manifest says is IntegrityError; Error: the runtime refuses the file.
[[nodiscard]] std::unique_ptr<Session> open_session(const std::filesystem::path& folder, const Manifest& manifest,
                                                    const std::string& name, const Options& options,
                                                    const std::optional<Cache>& cache);

/// Whether a runtime may map the weights of a form: those of more bytes than `read_bytes_at_most` together. Others are
/// read (FORMAT.md, Changes in place).
inline constexpr std::int64_t read_bytes_at_most = std::int64_t{1} << 28U;
[[nodiscard]] bool may_map(const Manifest& manifest, const Form& form);

/// The bytes of a bundled file that is to be there. Throws IntegrityError where it cannot be read.
[[nodiscard]] std::string read_regular(const std::filesystem::path& path);

/// Throws IntegrityError unless names, dtypes, ranks and fixed sizes of an open session are the manifest's.
void check_ports(const IO& io, const Form& form, const Session& session, const std::string& where);

/// Throws IntegrityError unless an engine's optimization profiles are the manifest's, in order.
void check_profiles(const IO& io, const Form& form, const Session& session, const std::string& where);

/// The first three numbers of a version, to compare; what a build adds behind them does not count.
[[nodiscard]] std::vector<std::int64_t> release(std::string_view version);

/// Throws RuntimeMissing unless the release of a runtime is one that a form takes; `how` says how to get another.
void require_release(std::string_view runtime, std::string_view version, const Requires& wanted, std::string_view how);

/// What the header of a serialized TensorRT-RTX engine says; see engine_header.cpp.
struct EngineHeader {
    std::string version;           ///< of the TensorRT-RTX that built it, such as `1.7.1.116`
    std::uint64_t size_bytes = 0;  ///< of the whole file; equal to what is on disk
    std::vector<std::int64_t> sm;  ///< the compute capabilities it runs on (`86` is 8.6)
};

/// Reads and checks the header of a TensorRT-RTX engine. It finds a file that is no engine and one that was cut short;
/// a changed byte behind the header it does not find. Throws SystemError: the file cannot be read;
/// std::invalid_argument: other magic, cut short, or bytes behind its end.
[[nodiscard]] EngineHeader read_header(const std::filesystem::path& path);

/// Throws std::invalid_argument or SystemError for an engine whose own header contradicts the manifest; see
/// engine_header.cpp. Nothing is known of the header of TensorRT's own engines.
void check_engine_file(const std::filesystem::path& path, const Form& form);

/// What each backend file offers. One that is not compiled in throws RuntimeMissing, and says what it was built without.
[[nodiscard]] std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path& path, const Manifest& manifest,
                                                        const Form& form, const Options& options);
[[nodiscard]] std::unique_ptr<Session> open_openvino(const std::filesystem::path& path, const Manifest& manifest,
                                                     const Form& form, const Options& options);
[[nodiscard]] std::unique_ptr<Session> open_engine(const std::filesystem::path& path, const Manifest& manifest,
                                                   const std::string& name, const std::optional<Cache>& cache);

}  // namespace attnport::reader
