#include "manifest.hpp"

#include <system_error>

#include <attnport/error.hpp>

#include "json.hpp"
#include "manifest_decode.hpp"
#include "regular.hpp"
#include "sha256.hpp"
#include "words.hpp"

namespace attnport::reader {

Manifest from_bytes(std::string_view data, const std::string& where) {
    const Value value = parse(data, where);
    const auto* object = value.get<Object>();
    const Value* format = object == nullptr ? nullptr : object->find("format");
    const auto* name = format == nullptr ? nullptr : format->get<std::string>();
    if (name == nullptr || *name != format_name) throw Error(where + " is not the manifest of a bundle.");
    const Value* version = object->find("version");
    const auto* number = version == nullptr ? nullptr : version->get<std::int64_t>();
    if (number == nullptr || *number != format_version) {
        const std::string got = version == nullptr ? "None" : repr(*version);
        throw Error(where + ": got version " + cut(got, 60, "") + "; this reader knows version " +
                    std::to_string(format_version) + ".");
    }
    Manifest manifest = decode_manifest(value, where);
    manifest.digest = sha256_hex(data);
    return manifest;
}

std::string read_bytes(const std::filesystem::path& folder) {
    const std::string shown_folder = plain(folder);
    const std::filesystem::path path = folder / manifest_name;
    const std::string shown_path = plain(path);
    std::error_code error;
    const auto known = [&](bool found) {
        // What nobody may look at is neither there nor missing.
        if (!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory ||
            error == std::errc::too_many_symbolic_link_levels) {
            return found;
        }
        throw Error(shown_path + " cannot be read: " + error.message() + ".");
    };
    if (!known(std::filesystem::is_directory(folder, error))) throw Error(shown_folder + " is not a folder.");
    if (known(std::filesystem::is_symlink(path, error))) throw IntegrityError(shown_path + " is a link.");
    if (!known(std::filesystem::is_regular_file(path, error))) {
        throw Error(shown_folder + " is no bundle: it has no " + std::string(manifest_name) + ".");
    }
    std::string data;
    try {
        data = RegularFile(path).read_up_to(max_manifest_bytes + 1);
    } catch (const std::exception& failure) {
        throw Error(shown_path + " cannot be read: " + failure.what() + ".");
    }
    if (data.size() > max_manifest_bytes) {
        throw IntegrityError(shown_path + " has more than " + std::to_string(max_manifest_bytes) + " bytes.");
    }
    return data;
}

}  // namespace attnport::reader
