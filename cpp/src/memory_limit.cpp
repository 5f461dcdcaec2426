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

std::string mb(std::int64_t size) { return fixed(static_cast<double>(size) / 1e6, 1) + " MB"; }

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

MemoryLimit::MemoryLimit(std::optional<std::int64_t> limit, Learned& learned, std::function<Used()> measure)
    : limit_(limit), learned_(learned), measure_(std::move(measure)) {
    if (limit_ && *limit_ < 1) {
        throw FeedError("max_memory: got " + std::to_string(*limit_) + "; expected 1 byte or more.");
    }
}

std::int64_t MemoryLimit::places(std::int64_t length, std::int64_t tokens) const {
    if (!limit_) return tokens;
    if (length > learned_.length) return 0;
    const double rate = learned_.kept_rate + learned_.output_rate;
    std::int64_t most = std::min(tokens, 2 * learned_.places);
    if (rate > 0) {
        const auto room = static_cast<double>(*limit_ - *limit_ / reserve_part - held(*limit_));
        const double fitting = (room + static_cast<double>(learned_.places) * learned_.kept_rate) / rate;
        most = static_cast<std::int64_t>(std::min(static_cast<double>(most), fitting));
    }
    return std::max<std::int64_t>(0, most);
}

std::vector<std::int64_t> MemoryLimit::steps(std::int64_t length) const {
    std::vector<std::int64_t> found;
    if (!limit_) return found;
    for (auto step = std::max(start_places, 2 * learned_.length); step < length; step *= 2) found.push_back(step);
    return found;
}

Outputs MemoryLimit::run(std::int64_t places, std::int64_t length, const std::function<Outputs()>& call) {
    if (!limit_) return call();
    const double kept = static_cast<double>(std::max<std::int64_t>(0, extra(places, length))) * learned_.kept_rate;
    const double needed = kept + static_cast<double>(places) * learned_.output_rate;
    const std::string batch = "a batch of " + std::to_string(places) + " places";
    require(static_cast<std::int64_t>(needed), batch);
    const Used before = measure_();
    Outputs outputs = call();
    const std::int64_t given = bytes_of(outputs);
    const Used after = measure_();
    const std::int64_t most = after.peak > before.peak ? after.peak : after.now;
    learned_.output_rate = static_cast<double>(given) / static_cast<double>(places);
    learn(places, length, most - before.now - given);
    if (most > *limit_) {
        throw FeedError("max_memory: with " + batch + " the process held " + mb(most) + ", " + mb(before.now) +
                        " before it; the limit is " + mb(*limit_) + ".");
    }
    return outputs;
}

/// The places of a batch for which no memory is kept.
std::int64_t MemoryLimit::extra(std::int64_t places, std::int64_t length) const {
    return places - (length <= learned_.length ? learned_.places : std::min(learned_.places, learned_.length));
}

void MemoryLimit::learn(std::int64_t places, std::int64_t length, std::int64_t grown) {
    const std::int64_t more = extra(places, length);
    if (grown > 0 && 4 * more >= places) {
        // No less than half of before: a batch that found memory of earlier ones says little.
        learned_.kept_rate = std::max(static_cast<double>(grown) / static_cast<double>(more), learned_.kept_rate / 2);
    }
    learned_.places = length > learned_.length ? places : std::max(learned_.places, places);
    learned_.length = std::max(learned_.length, length);
}

void MemoryLimit::require(std::int64_t needed, const std::string& what) const {
    if (!limit_) return;
    const std::int64_t now = held(*limit_);
    if (now <= *limit_ - needed) return;
    throw FeedError("max_memory: " + what + " needs " + mb(needed) + " more; the process holds " + mb(now) +
                    ", the limit is " + mb(*limit_) + ".");
}

std::int64_t MemoryLimit::held(std::int64_t limit) const {
    const std::int64_t now = measure_().now;
    if (now <= limit) return now;
    throw FeedError("max_memory: the process holds " + mb(now) + "; the limit is " + mb(limit) + ".");
}

}  // namespace attnport::reader
