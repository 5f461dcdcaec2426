// The zip format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, section 4. Sizes and digests are those
// of the central directory; of the header in front of a member only the name and the length count.
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "npy.hpp"
#include "printable.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::string_view end_magic = "PK\5\6";
constexpr std::string_view entry_magic = "PK\1\2";
constexpr std::string_view local_magic = "PK\3\4";
constexpr std::size_t end_bytes = 22;
constexpr std::size_t entry_bytes = 46;
constexpr std::size_t local_bytes = 30;
constexpr std::size_t max_comment_bytes = 0xFFFF;
constexpr std::uint32_t in_zip64 = 0xFFFFFFFF;  // the number stands in an extra field, as archives over 4 GiB need it
// Flags of a member that a reader can leave alone: how hard it was deflated, sizes behind the data, UTF-8 names.
constexpr std::uint32_t harmless_flags = 0x0002 | 0x0004 | 0x0008 | 0x0800;
constexpr std::uint32_t utf8_flag = 0x0800;
constexpr std::uint32_t stored = 0;
constexpr std::uint32_t deflated = 8;
constexpr std::uint64_t max_ratio = 1032;  // deflate packs no better: https://zlib.net/zlib_tech.html

constexpr std::string_view ending = ".npy";

/// An entry of the central directory.
struct Member {
    std::string name;
    std::uint32_t flags = 0;
    std::uint32_t method = 0;
    std::uint32_t crc = 0;
    std::uint64_t packed = 0;
    std::uint64_t size = 0;
    std::uint64_t at = 0;   ///< where its local header starts
    std::uint64_t end = 0;  ///< behind its data
};

/// Where the central directory ends: the last record of that kind whose comment reaches exactly to the end.
std::size_t end_of_directory(const Piece& file) {
    if (file.size() < end_bytes) refuse("it is no zip archive");
    const std::size_t last = file.size() - end_bytes;
    const std::size_t first = last > max_comment_bytes ? last - max_comment_bytes : 0;
    for (std::size_t at = last + 1; at-- > first;) {
        if (file.slice(at, 4) == end_magic && file.number(at + 20, 2) == last - at) return at;
    }
    refuse("it is no zip archive");
}

std::string name_of(std::string_view raw, std::uint32_t flags) {
    const bool ascii = std::all_of(raw.begin(), raw.end(), [](char letter) { return letter > 0 && letter < 0x7F; });
    if (!ascii && !((flags & utf8_flag) != 0 && is_printable(raw))) refuse("a name in it cannot be printed");
    return std::string(raw);
}

Member entry_at(const Piece& file, std::uint64_t at) {
    if (file.slice(at, 4) != entry_magic) refuse("its directory is damaged");
    Member found;
    found.flags = file.number(at + 8, 2);
    found.method = file.number(at + 10, 2);
    found.crc = file.number(at + 16, 4);
    const std::uint32_t packed = file.number(at + 20, 4);
    const std::uint32_t size = file.number(at + 24, 4);
    const std::uint32_t start = file.number(at + 42, 4);
    found.name = name_of(file.slice(at + entry_bytes, file.number(at + 28, 2)), found.flags);
    const auto complain = [&found](const char* words) { refuse(reader::quoted(found.name) + ": " + words); };
    if (packed == in_zip64 || size == in_zip64 || start == in_zip64) complain("a member of a ZIP64 archive");
    if (file.number(at + 34, 2) != 0) complain("a member on another disk");
    if ((found.flags & ~harmless_flags) != 0) complain("encrypted, or packed in a way that is not known");
    if (found.method != stored && found.method != deflated) complain("neither stored nor deflated");
    const bool contradict = found.method == stored ? packed != size : size / max_ratio > packed;
    if (contradict) complain("its sizes contradict each other");
    found.packed = packed;
    found.size = size;
    found.at = start;
    return found;
}

/// Every member, as the central directory has them.
std::vector<Member> directory(const Piece& file) {
    const std::size_t end = end_of_directory(file);
    const std::uint32_t count = file.number(end + 10, 2);
    const std::uint64_t size = file.number(end + 12, 4);
    const std::uint64_t start = file.number(end + 16, 4);
    if (file.number(end + 4, 4) != 0 || file.number(end + 8, 2) != count) refuse("it is one part of a split archive");
    if (start + size != end) refuse("its directory does not lie where it says, or it is a ZIP64 archive");
    std::vector<Member> found;
    std::uint64_t at = start;
    while (found.size() < count) {
        found.push_back(entry_at(file, at));
        at += entry_bytes + file.number(at + 28, 2) + file.number(at + 30, 2) + file.number(at + 32, 2);
        if (at > end) refuse("its directory is damaged");
    }
    if (at != end) refuse("its directory is damaged");
    return found;
}

/// The packed data of a member, behind the header in front of it; notes where it ends.
std::string_view packed_data(const Piece& file, Member& member) {
    const auto complain = [&member](const char* words) { refuse(reader::quoted(member.name) + ": " + words); };
    if (file.slice(member.at, 4) != local_magic) complain("no member stands where the directory says");
    const std::uint32_t name_bytes = file.number(member.at + 26, 2);
    if (file.slice(member.at + local_bytes, name_bytes) != member.name) complain("its header has another name");
    const bool agrees = file.number(member.at + 6, 2) == member.flags && file.number(member.at + 8, 2) == member.method;
    if (!agrees) complain("its header contradicts the directory");
    const std::uint64_t start = member.at + local_bytes + name_bytes + file.number(member.at + 28, 2);
    const std::string_view data = file.slice(start, member.packed);
    member.end = start + member.packed;
    return data;
}

/// Unpacks a member whose sizes were checked. zlib's input is not const in its older releases.
Bytes inflated(std::string_view packed, std::size_t size) {
    Bytes found(std::max<std::size_t>(size, 1));  // zlib takes no null pointer
    z_stream stream{};
    stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed.data()));  // NOLINT
    stream.avail_in = static_cast<uInt>(packed.size());
    stream.next_out = reinterpret_cast<Bytef*>(found.data());  // NOLINT(*-reinterpret-cast): zlib's own byte
    stream.avail_out = static_cast<uInt>(size);
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
    const int status = inflate(&stream, Z_FINISH);
    const bool whole = status == Z_STREAM_END && stream.avail_in == 0 && stream.total_out == size;
    inflateEnd(&stream);
    if (!whole) refuse("it does not unpack to its size");
    found.resize(size);
    return found;
}

Bytes unpacked(std::string_view packed, const Member& member) {
    const auto size = static_cast<std::size_t>(member.size);
    Bytes found;
    if (member.method == deflated) {
        found = inflated(packed, size);
    } else {
        found.resize(size);
        if (size != 0) std::memcpy(found.data(), packed.data(), size);
    }
    const auto* data = reinterpret_cast<const Bytef*>(found.data());  // NOLINT(*-reinterpret-cast): as above
    const uLong crc = size == 0 ? crc32(0, nullptr, 0) : crc32(crc32(0, nullptr, 0), data, static_cast<uInt>(size));
    if (crc != member.crc) refuse(reader::quoted(member.name) + ": its data is damaged");
    return found;
}

/// Throws where two members, or one and the directory, share bytes.
void check_apart(std::vector<Member> members, std::uint64_t directory_at) {
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.at < b.at; });
    for (std::size_t index = 0; index < members.size(); ++index) {
        const std::uint64_t next = index + 1 < members.size() ? members[index + 1].at : directory_at;
        if (members[index].end > next) {
            refuse(reader::quoted(members[index].name) + ": overlaps with what stands behind it");
        }
    }
}

}  // namespace

Ordered<NpyArray> read_npz(std::string_view data) {
    const Piece file(data);
    std::vector<Member> members = directory(file);
    std::uint64_t total = 0;
    for (const Member& member : members) total += member.size;  // 16 bits of 32 bits each cannot overflow
    if (total > max_npz_bytes) refuse("it unpacks to more than " + std::to_string(max_npz_bytes) + " bytes");
    std::vector<std::string_view> packed;
    packed.reserve(members.size());
    for (Member& member : members) packed.push_back(packed_data(file, member));
    check_apart(members, file.number(end_of_directory(file) + 16, 4));
    Ordered<NpyArray> found;
    for (std::size_t index = 0; index < members.size(); ++index) {
        std::string name = members[index].name;
        const bool ends = name.size() >= ending.size() && name.compare(name.size() - 4, 4, ending) == 0;
        if (ends) name.resize(name.size() - ending.size());
        if (found.has(name)) refuse("a name is there twice");
        NpyArray array = read_npy(name, unpacked(packed[index], members[index]));
        found.add(std::move(name), std::move(array));
    }
    return found;
}

}  // namespace attnport::reader
