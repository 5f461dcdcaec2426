#include "format/signature.hpp"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/objects.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "format/files.hpp"

namespace attnport::reader {

namespace fs = std::filesystem;

std::optional<std::string> read_signature(const fs::path& folder) {
    const fs::path path = folder / signature_name;
    std::error_code error;
    if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return std::nullopt;
    std::string data;
    try {
        data = RegularFile(path).read_up_to(signature_bytes + 1);
    } catch (const std::runtime_error&) {
        data.clear();
    }
    if (data.size() == signature_bytes) return data;
    throw IntegrityError(path.string() + " is not a signature: expected a regular file of " +
                         std::to_string(signature_bytes) + " bytes that can be read.");
}

Trusted read_trusted(const fs::path& folder, const std::optional<fs::path>& key) {
    const std::string data = read_bytes(folder);
    std::string fingerprint;
    if (key) fingerprint = check_signature(data, read_signature(folder), not_empty(*key), folder);
    return {from_bytes(data, (folder / manifest_name).string()), std::move(fingerprint)};
}

namespace {

// What is signed starts with this and a zero byte, so that a signature made for another purpose never fits a manifest.
constexpr std::string_view prefix = "attnport-bundle-signature-v1";
constexpr std::size_t raw_key_bytes = 32;
using RawKey = std::array<std::uint8_t, raw_key_bytes>;

void refuse_inside(const fs::path& key, const fs::path& folder) {
    // Also a link in the folder that leads out of it, and one outside that leads into it.
    if (is_inside(key, folder) || is_inside(key.parent_path() / ".", folder)) {
        throw Error(key.string() + ": a key inside " + folder.string() + " proves nothing; keep it elsewhere.");
    }
}

struct Free {
    void operator()(BIO* bio) const noexcept { BIO_free(bio); }
    void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
    void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
    void operator()(void* memory) const noexcept { OPENSSL_free(memory); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;

Key read_key(const fs::path& path) {
    const std::unique_ptr<BIO, Free> bio(BIO_new_file(path.c_str(), "r"));
    if (!bio) throw Error(path.string() + ": the key cannot be read: " + std::generic_category().message(errno) + ".");
    // The first block of the file, whatever it is: PEM_read_bio_PUBKEY would pass over a private key in front.
    char* kind = nullptr;
    char* header = nullptr;
    unsigned char* der = nullptr;
    long bytes = 0;
    Key key;
    if (PEM_read_bio(bio.get(), &kind, &header, &der, &bytes) == 1) {
        const std::unique_ptr<char, Free> owned_kind(kind);
        const std::unique_ptr<char, Free> owned_header(header);
        const std::unique_ptr<unsigned char, Free> owned_der(der);
        const unsigned char* at = der;
        if (std::strcmp(kind, PEM_STRING_PUBLIC) == 0) key.reset(d2i_PUBKEY(nullptr, &at, bytes));
    }
    ERR_clear_error();
    return key;
}

// Whether a key is one of the curve's eight points of order 1, 2, 4 or 8, however it is spelled: y is 0, 1 or -1, or
// d y^4 + 2 y^2 = 1, modulo 2^255 - 19; see is_small_order in the Python reader. These are all the spellings below
// 2^255; the topmost bit is the sign of x and does not matter.
bool is_small_order(RawKey key) {
    constexpr std::array<std::string_view, 7> spellings = {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"};
    key.back() &= 0x7FU;
    const std::string spelled = hex({reinterpret_cast<const char*>(key.data()), key.size()});
    return std::find(spellings.begin(), spellings.end(), spelled) != spellings.end();
}

// The first 16 hex digits of the SHA-256 of the key's DER form (RFC 8410), which is its 32 bytes behind a fixed head.
std::string fingerprint_of(const RawKey& key) {
    std::string der("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12);
    der.append(key.begin(), key.end());
    return hex(sha256(der)).substr(0, 16);
}

Key read_public(const fs::path& path, const fs::path& folder, RawKey& raw) {
    refuse_inside(path, folder);
    Key key = read_key(path);
    if (!key) throw Error(path.string() + " is not a public key in PEM form: OpenSSL cannot read it.");
    if (EVP_PKEY_base_id(key.get()) != EVP_PKEY_ED25519) {
        throw Error(path.string() + ": got a key of " + OBJ_nid2ln(EVP_PKEY_base_id(key.get())) +
                    "; expected an Ed25519 public key.");
    }
    std::size_t size = raw.size();
    if (EVP_PKEY_get_raw_public_key(key.get(), raw.data(), &size) != 1 || size != raw.size()) {
        throw Error(path.string() + " is not a public key in PEM form: it has no 32 bytes.");
    }
    if (is_small_order(raw)) {
        throw Error(path.string() + ": a key of small order, which accepts the same signature for every text.");
    }
    return key;
}

bool fits(EVP_PKEY* key, const std::string& signature, const std::string& message) {
    const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
    if (!context || EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key) != 1) {
        throw Error("OpenSSL cannot check an Ed25519 signature.");
    }
    const auto bytes = [](const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); };
    const int answer =
        EVP_DigestVerify(context.get(), bytes(signature), signature.size(), bytes(message), message.size());
    ERR_clear_error();
    return answer == 1;
}

}  // namespace

std::string check_signature(std::string_view manifest, const std::optional<std::string>& signature,
                            const fs::path& key, const fs::path& folder) {
    RawKey raw{};
    const Key read = read_public(key, folder, raw);
    if (!signature) {
        throw IntegrityError(folder.string() + " is not signed: it has no " + std::string(signature_name) + ".");
    }
    std::string message(prefix);
    message.push_back('\0');
    message += manifest;
    std::string fingerprint = fingerprint_of(raw);
    if (!fits(read.get(), *signature, message)) {
        throw IntegrityError((folder / signature_name).string() +
                             ": the signature is not one of this manifest with the key " + fingerprint + ".");
    }
    return fingerprint;
}

}  // namespace attnport::reader
