#include "decode/generate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

using Ids = std::vector<std::int64_t>;
using IdRows = std::vector<Ids>;
using Marks = std::vector<std::vector<bool>>;  ///< by text, of each place: whether its token is real, and not padding

/// Numbers, as many for each of so many rows.
Tensor rows_of(const TensorSpec& spec, std::size_t rows, const Ids& values) {
    const auto count = static_cast<std::int64_t>(rows);
    return tensor_of(spec, {count, static_cast<std::int64_t>(values.size()) / count}, values);
}

Tensor rows_of(const TensorSpec& spec, const Marks& marks) {
    Ids numbers;
    for (const auto& row : marks) numbers.insert(numbers.end(), row.begin(), row.end());
    return rows_of(spec, marks.size(), numbers);
}

/// The size of an axis of a cache at its beginning.
std::int64_t first_size(const IO& io, const Axis& axis, const Axis& batch, std::size_t texts) {
    if (axis == batch) return static_cast<std::int64_t>(texts);
    if (const auto* const number = std::get_if<std::int64_t>(&axis)) return *number;
    if (const Dim* const dim = dim_of(io.dims, axis)) return dim->min;
    throw FeedError("the model does not generate: a cache has the size " + std::get<std::string>(axis) + ".");
}

/// The scores of what follows the last token of every text.
struct Logits {
    std::size_t words = 0;
    std::vector<double> scores;  ///< [texts, words]

    [[nodiscard]] const double* row(std::size_t text) const { return scores.data() + text * words; }
};

/// A batch of texts that grow, with their cache and a mask of the real tokens in it.
class Decoding {
public:
    /// `io` and `facts` are kept by reference. Where `make_steps` makes none, caches are copied at every step. Throws
    /// FeedError for another context than the model takes.
    Decoding(const Run& run, const IO& io, const DecoderFacts& facts, MakeSteps make_steps, Inputs context)
        : run_(run), make_steps_(std::move(make_steps)), io_(io), facts_(facts), context_(std::move(context)) {
        std::vector<std::string> wanted;
        std::vector<std::string> got;
        for (const TensorSpec* const spec : facts.context) wanted.push_back(spec->name);
        for (const Input& input : context_) got.emplace_back(input.name());
        std::sort(wanted.begin(), wanted.end());
        std::sort(got.begin(), got.end());
        if (wanted == got) return;
        for (std::string& name : got) name = shown(name);
        throw FeedError("context: got " + (got.empty() ? "nothing" : joined(got)) + "; expected " +
                        (wanted.empty() ? "nothing" : joined(wanted) + ", of the encoder") + ".");
    }

    /// Runs new tokens, as many for every text, and adds their keys and values to the cache. Once one token was run
    /// behind others, only single ones may follow.
    Logits push(const IdRows& ids, const Marks& real) {
        if (real_.empty()) begin(ids.size());
        drop();
        Marks all = real_;
        Ids tokens;
        for (std::size_t text = 0; text < ids.size(); ++text) {
            all[text].insert(all[text].end(), real[text].begin(), real[text].end());
            tokens.insert(tokens.end(), ids[text].begin(), ids[text].end());
        }
        const std::size_t added = ids[0].size();
        std::vector<Tensor> given{rows_of(*facts_.ids, ids.size(), tokens)};
        if (facts_.mask != nullptr) given.push_back(rows_of(*facts_.mask, covered(all, real, added)));
        if (facts_.window_mask != nullptr) given.push_back(rows_of(*facts_.window_mask, last(all, added)));
        if (facts_.positions != nullptr) given.push_back(positions(all, added));
        Inputs inputs(given.begin(), given.end());
        inputs.insert(inputs.end(), context_.begin(), context_.end());
        Steps* const kept = added == 1 && !real_[0].empty() ? steps() : nullptr;
        const Outputs outputs = kept != nullptr ? kept->run(std::move(inputs)) : run_and_keep(std::move(inputs));
        real_ = std::move(all);
        kept_ += static_cast<std::int64_t>(added);
        return scores(outputs, ids.size());
    }

private:
    void begin(std::size_t batch) {
        real_.assign(batch, std::vector<bool>(static_cast<std::size_t>(facts_.start), false));
        kept_ = facts_.start;
        for (const Cached& cache : facts_.caches) {
            Shape shape;
            for (const Axis& axis : cache.spec->dims) {
                shape.push_back(first_size(io_, axis, facts_.ids->dims[0], batch));
            }
            std::shared_ptr<std::byte> memory = allocate(elements(shape) * size_bytes(cache.spec->dtype));
            caches_.emplace_back(cache.spec->name, cache.spec->dtype, std::move(shape), std::move(memory));
        }
    }

    /// The places of which the mask tells.
    [[nodiscard]] Marks covered(const Marks& all, const Marks& real, std::size_t added) const {
        if (!facts_.mask_covers_new) return real_;
        if (io_.decoder->mask_covers == "new") return real;
        return facts_.holds_all ? all : last(all, added);
    }

    /// The places that the caches of a window hold, and the new tokens.
    [[nodiscard]] Marks last(const Marks& all, std::size_t added) const {
        const auto count = static_cast<std::ptrdiff_t>(kept_) + static_cast<std::ptrdiff_t>(added);
        Marks found;
        for (const auto& row : all) found.emplace_back(row.end() - count, row.end());
        return found;
    }

    [[nodiscard]] Tensor positions(const Marks& all, std::size_t added) const {
        Ids found;
        for (const auto& row : all) {
            const auto first_new = row.end() - static_cast<std::ptrdiff_t>(added);
            auto real = static_cast<std::int64_t>(std::count(row.begin(), first_new, true));
            for (auto at = first_new; at != row.end(); ++at) {
                real += *at ? 1 : 0;
                found.push_back(std::max<std::int64_t>(real - 1, 0));
            }
        }
        return rows_of(*facts_.positions, all.size(), found);
    }

    /// Lets places of the caches of a window go that no new token sees.
    void drop() {
        if (!facts_.has_window) return;
        const std::int64_t places = facts_.places;
        // Where nothing else copies a cache, its places are moved once in many steps.
        const std::int64_t spare = steps_ == nullptr ? 1 : std::min(spare_places(places), facts_.most_places - places);
        const std::int64_t count = kept_ - places;
        if (count < std::max<std::int64_t>(1, spare)) return;
        kept_ = places;
        if (steps_ != nullptr) {
            steps_->drop(count);
            return;
        }
        for (std::size_t at = 0; at < caches_.size(); ++at) {
            const Cached& cache = facts_.caches[at];
            if (cache.holds_window) caches_[at] = cut_along(caches_[at], *cache.axis, count, places, places);
        }
    }

    /// What runs single tokens, made with the first of them; null where nothing does.
    [[nodiscard]] Steps* steps() {
        if (const MakeSteps make = std::exchange(make_steps_, nullptr)) {
            steps_ = make(facts_);
            if (steps_ != nullptr) steps_->begin(std::exchange(caches_, {}));
        }
        return steps_.get();
    }

    [[nodiscard]] Outputs run_and_keep(Inputs inputs) {
        for (std::size_t at = 0; at < caches_.size(); ++at) {
            const Tensor& cache = caches_[at];
            inputs.emplace_back(facts_.caches[at].spec->name, cache.data(), cache.dtype(), cache.shape());
        }
        Outputs outputs = run_(inputs);
        for (std::size_t at = 0; at < caches_.size(); ++at) {
            const Cached& cache = facts_.caches[at];
            const Tensor found = cast(outputs.at(cache.output), cache.spec->dtype);
            const bool whole = facts_.returns_whole_caches || !cache.axis;
            caches_[at] = whole ? found : joined_along(caches_[at], found, *cache.axis);
        }
        return outputs;
    }

    [[nodiscard]] Logits scores(const Outputs& outputs, std::size_t batch) const {
        const Tensor& found = outputs.at(facts_.logits->name);
        Logits logits;
        logits.words = static_cast<std::size_t>(*facts_.ids->high);
        logits.scores.resize(batch * logits.words);
        const std::size_t rows = found.size() / (batch * logits.words);
        const bool fits = rows != 0 && found.size() == rows * batch * logits.words;
        if (!fits || (!facts_.scores_every_token && rows != 1)) {
            throw Error("output " + reader::quoted(found.name()) + ": got shape " + listed(found.shape()) +
                        "; expected " + facts_.logits->text() + " for " + std::to_string(batch) + " texts.");
        }
        const std::size_t width = size_bytes(found.dtype());
        const auto* const from = static_cast<const std::byte*>(found.data());
        for (std::size_t text = 0; text < batch; ++text) {
            const std::byte* const row = from + (text * rows + rows - 1) * logits.words * width;
            to_double(row, found.dtype(), logits.words, logits.scores.data() + text * logits.words);
        }
        return logits;
    }

    const Run& run_;
    MakeSteps make_steps_;          ///< none once it was asked
    std::unique_ptr<Steps> steps_;  ///< they have the caches
    const IO& io_;
    const DecoderFacts& facts_;
    Inputs context_;
    std::vector<Tensor> caches_;  ///< until there are `steps_`
    Marks real_;                  ///< of every place before the new tokens
    std::int64_t kept_ = 0;       ///< the places of the caches of a window
};

void require(bool fits, const std::string& name, const std::string& got, const std::string& expected) {
    if (!fits) throw FeedError(name + ": got " + got + "; expected " + expected + ".");
}

/// Refuses rules that are not kept here, but for beams where tokens are drawn: then they would not be used.
void check_rules(const Decoder& decoder, const GenerateOptions& options) {
    if (options.ignore_rules) return;
    std::vector<std::string> rules = decoder.rules;
    if (options.temperature > 0) rules.erase(std::remove(rules.begin(), rules.end(), "beams"), rules.end());
    if (rules.empty()) return;
    throw FeedError("the model's generation config has rules that C++ does not keep to: " + joined(rules) +
                    ". Generate in Python, or set ignore_rules to choose tokens by their scores alone.");
}

/// Runs the prompts, padded at the left.
Logits push_prompts(Decoding& decoding, const DecoderFacts& facts, const IdRows& prompts, std::int64_t most) {
    std::size_t longest = 0;
    std::size_t shortest = std::numeric_limits<std::size_t>::max();
    for (const Ids& prompt : prompts) {
        longest = std::max(longest, prompt.size());
        shortest = std::min(shortest, prompt.size());
    }
    if (prompts.empty() || shortest == 0) {
        throw FeedError("prompts: got none, or one without a token; expected one or more tokens each.");
    }
    const std::int64_t room = facts.longest_past - facts.start;
    if (static_cast<std::int64_t>(longest) + most - 2 > room) {
        throw FeedError("prompts: " + std::to_string(longest) + " tokens and " + std::to_string(most) +
                        " new ones; the model keeps at most " + std::to_string(room) + " in its cache.");
    }
    if (shortest < longest) {
        const std::string got =
            "prompts: got lengths " + std::to_string(shortest) + " to " + std::to_string(longest) + "; ";
        if (!facts.context.empty()) throw FeedError(got + "with an encoder, all have the same length.");
        if (!facts.mask_covers_new && facts.window_mask == nullptr) {
            throw FeedError(got + "the model takes no mask of the new tokens, so all have the same length.");
        }
    }
    Logits logits;
    const auto step = static_cast<std::size_t>(facts.longest_seq);
    for (std::size_t start = 0; start < longest; start += step) {
        IdRows ids;
        Marks real;
        for (const Ids& prompt : prompts) {
            ids.emplace_back();
            real.emplace_back();
            const std::size_t missing = longest - prompt.size();
            for (std::size_t at = start; at < std::min(longest, start + step); ++at) {
                ids.back().push_back(at < missing ? 0 : prompt[at - missing]);
                real.back().push_back(at >= missing);
            }
        }
        logits = decoding.push(ids, real);
    }
    return logits;
}

/// A number from 0 to below 1, the same for a seed on every platform.
double drawn(std::mt19937_64& random) { return static_cast<double>(random() >> 11U) * 0x1.0p-53; }

/// The token that follows a row of scores.
std::int64_t choose(const double* row, std::size_t words, const GenerateOptions& options, std::mt19937_64& random) {
    if (std::any_of(row, row + words, [](double score) { return std::isnan(score); })) {
        throw Error("the model's scores are NaN, so that no token follows; attnport check says where they begin.");
    }
    if (options.temperature == 0) return std::max_element(row, row + words) - row;
    // The tokens from the likeliest on; equal ones in their order.
    std::vector<std::size_t> order(words);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto likelier = [row](std::size_t one, std::size_t other) { return row[one] > row[other]; };
    std::stable_sort(order.begin(), order.end(), likelier);
    if (options.top_k != 0) order.resize(std::min(words, static_cast<std::size_t>(options.top_k)));
    std::vector<double> weights;
    weights.reserve(order.size());
    for (const std::size_t at : order) {
        weights.push_back(std::exp((row[at] - row[order[0]]) / options.temperature));
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    // A token is kept if the likelier ones together do not reach top_p.
    double before = 0;
    std::vector<double> bounds;
    double bound = 0;
    for (const double weight : weights) {
        if (before / sum < options.top_p) bound += weight;
        before += weight;
        bounds.push_back(bound);
    }
    const auto found = std::upper_bound(bounds.begin(), bounds.end(), drawn(random) * bounds.back());
    const auto place = std::min(static_cast<std::size_t>(found - bounds.begin()), order.size() - 1);
    return static_cast<std::int64_t>(order[place]);
}

}  // namespace

IdRows generate(const Run& run, const MakeSteps& make_steps, const IO& io, const IdRows& prompts,
               const GenerateOptions& options) {
    require(options.max_tokens >= 1, "max_tokens", std::to_string(options.max_tokens), "1 or more");
    require(options.temperature >= 0, "temperature", fixed(options.temperature, 2), "0 or more");
    require(options.top_k >= 0, "top_k", std::to_string(options.top_k), "0 or more");
    require(options.top_p > 0 && options.top_p <= 1, "top_p", fixed(options.top_p, 2), "above 0, at most 1");
    const DecoderFacts facts = facts_of(io);
    check_rules(*io.decoder, options);
    const Ids& stop = options.stop ? *options.stop : io.decoder->stop;
    Decoding decoding(run, io, facts, make_steps, options.context);
    Logits logits = push_prompts(decoding, facts, prompts, options.max_tokens);
    std::mt19937_64 random(options.seed ? *options.seed : std::random_device{}());
    IdRows texts(prompts.size());
    std::vector<bool> ended(prompts.size(), false);
    for (std::int64_t number = 1;; ++number) {
        IdRows next;
        for (std::size_t text = 0; text < texts.size(); ++text) {
            const std::int64_t token = choose(logits.row(text), logits.words, options, random);
            next.push_back({token});
            if (ended[text]) continue;
            texts[text].push_back(token);
            if (options.on_token) options.on_token(text, token);
            ended[text] = std::find(stop.begin(), stop.end(), token) != stop.end();
        }
        const bool over = std::all_of(ended.begin(), ended.end(), [](bool end) { return end; });
        if (over || number == options.max_tokens) return texts;
        logits = decoding.push(next, Marks(texts.size(), {true}));
    }
}

}  // namespace attnport::reader
