#include "memory_limit.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include <attnport/error.hpp>

#include "words.hpp"

namespace attnport::reader {
namespace {

/// Places of the first call of a model under a limit, of which nothing is known.
constexpr std::int64_t start_places = 64;
/// The part of the limit that batches are not planned to fill: a batch of longer items takes more a place.
constexpr std::int64_t reserve_part = 16;

std::string mb(std::int64_t size) { return fixed(static_cast<double>(size) / 1e6, 2) + " MB"; }

std::int64_t bytes_of(const Outputs& outputs) {
    std::size_t bytes = 0;
    for (const auto& tensor : outputs) bytes += tensor.size() * size_bytes(tensor.dtype());
    return static_cast<std::int64_t>(bytes);
}

}  // namespace

Used used() {
    std::ifstream status("/proc/self/status");
    Used found;
    for (std::string line; std::getline(status, line);) {
        std::istringstream words(line);
        std::string name;
        std::int64_t kib = 0;
        if (!(words >> name >> kib)) continue;
        if (name == "VmRSS:") found.now = kib * 1024;
        if (name == "VmHWM:") found.peak = kib * 1024;
    }
    if (found.now > 0 && found.peak > 0) return found;
    throw FeedError("max_memory: this system has no VmRSS and VmHWM in /proc/self/status; choose the size of batches "
                    "by tokens.");
}

MemoryLimit::MemoryLimit(std::optional<std::int64_t> limit, Learned& learned, std::function<bool()> give_back,
                         std::function<Used()> measure)
    : limit_(limit), learned_(learned), give_back_(std::move(give_back)), measure_(std::move(measure)) {
    if (limit_ && *limit_ < 1) {
        throw FeedError("max_memory: got " + std::to_string(*limit_) + "; expected 1 byte or more.");
    }
}

std::int64_t MemoryLimit::places(std::int64_t length, std::int64_t tokens) {
    if (!limit_) return tokens;
    if (length > learned_.length) return 0;
    const std::int64_t aim = *limit_ - *limit_ / reserve_part;
    const auto room = static_cast<double>(aim - held(aim));
    const double rate = learned_.rate + learned_.output_rate;
    std::int64_t most = std::min(tokens, 2 * learned_.places);
    if (rate > 0) {
        most = static_cast<std::int64_t>(std::min(static_cast<double>(most), room / rate));
    }
    return std::max(most, std::min(tokens, learned_.length));
}

std::vector<std::int64_t> MemoryLimit::steps(std::int64_t length) const {
    std::vector<std::int64_t> found;
    if (!limit_) return found;
    for (auto step = std::max(start_places, 2 * learned_.length); step < length; step *= 2) found.push_back(step);
    return found;
}

Outputs MemoryLimit::run(std::int64_t places, std::int64_t length, const std::function<Outputs()>& call) {
    if (!limit_) return call();
    const std::string batch = "a batch of " + std::to_string(places) + " places";
    const std::int64_t known = length <= learned_.length ? learned_.places : std::min(learned_.places, learned_.length);
    const std::int64_t extra = places - known;
    const auto count = static_cast<double>(places);
    static_cast<void>(held(*limit_ - static_cast<std::int64_t>(count * (learned_.rate + learned_.output_rate))));
    const double added = static_cast<double>(std::max<std::int64_t>(0, extra)) * learned_.rate;
    require(static_cast<std::int64_t>(added + count * learned_.output_rate), batch);
    const Used before = measure_();
    Outputs outputs = call();
    const std::int64_t given = bytes_of(outputs);
    const Used after = measure_();
    const std::int64_t most = after.peak > before.peak ? after.peak : after.now;
    learned_.output_rate = static_cast<double>(given) / count;
    const std::int64_t grown = most - before.now - given;
    if (grown > 0 && 4 * extra >= places) {
        // No less than half of before: a batch that found memory of earlier ones says little.
        learned_.rate = std::max(static_cast<double>(grown) / static_cast<double>(extra), learned_.rate / 2);
    }
    learned_.places = length > learned_.length ? places : std::max(learned_.places, places);
    learned_.length = std::max(learned_.length, length);
    if (most > *limit_) {
        throw FeedError("max_memory: with " + batch + " the process held " + mb(most) + ", " + mb(before.now) +
                        " before it; the limit is " + mb(*limit_) + ".");
    }
    return outputs;
}

void MemoryLimit::require(std::int64_t bytes, const std::string& what) const {
    if (!limit_) return;
    const std::int64_t now = measure_().now;
    if (now > *limit_) {
        throw FeedError("max_memory: the process holds " + mb(now) + "; the limit is " + mb(*limit_) + ".");
    }
    if (now <= *limit_ - bytes) return;
    throw FeedError("max_memory: " + what + " needs " + mb(bytes) + " more; the process holds " + mb(now) +
                    ", the limit is " + mb(*limit_) + ".");
}

/// What the process holds; if that is more than `aim`, behind what the runtime gives back.
std::int64_t MemoryLimit::held(std::int64_t aim) {
    const std::int64_t now = measure_().now;
    return now > aim && give_back_() ? measure_().now : now;
}

}  // namespace attnport::reader
