#include "generation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include <attnport/error.hpp>

#include "rules.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

using Tokens = std::vector<std::int64_t>;
using Texts = std::vector<Tokens>;

void require(bool fits, const std::string& name, const std::string& got, const std::string& expected) {
    if (!fits) throw FeedError(name + ": got " + got + "; expected " + expected + ".");
}

void check(const GenerateOptions& options, const Rules& rules) {
    require(options.max_tokens >= 1, "max_tokens", std::to_string(options.max_tokens), "1 or more");
    require(options.temperature >= 0, "temperature", fixed(options.temperature, 2), "0 or more");
    require(options.top_k >= 0, "top_k", std::to_string(options.top_k), "0 or more");
    require(options.top_p > 0 && options.top_p <= 1, "top_p", fixed(options.top_p, 2), "above 0, at most 1");
    if (const std::string problem = wrong_with(rules); !problem.empty()) throw FeedError(problem + ".");
    if (rules.beams > 1 && options.temperature > 0) {
        throw FeedError("temperature: beam search draws nothing; expected 0.");
    }
}

bool holds(const Tokens& tokens, std::int64_t token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

/// The texts as they begin: the prompts, padded at the left.
Logits begun(Decoding& decoding, const Roles& roles, const Texts& prompts, std::int64_t most) {
    std::size_t longest = 0;
    std::size_t shortest = std::numeric_limits<std::size_t>::max();
    for (const Tokens& prompt : prompts) {
        longest = std::max(longest, prompt.size());
        shortest = std::min(shortest, prompt.size());
    }
    if (prompts.empty() || shortest == 0) {
        throw FeedError("prompts: got none, or one without a token; expected one or more tokens each.");
    }
    const std::int64_t room = roles.longest_past - roles.start;
    if (static_cast<std::int64_t>(longest) + most - 2 > room) {
        throw FeedError("prompts: " + std::to_string(longest) + " tokens and " + std::to_string(most) +
                        " new ones; the model keeps at most " + std::to_string(room) + " in its cache.");
    }
    if (shortest < longest && !roles.context.empty()) {
        throw FeedError("prompts: they have different lengths; behind a context, all have the same.");
    }
    if (shortest < longest && (roles.mask == nullptr || !roles.whole)) {
        throw FeedError("prompts: they have different lengths, and the model takes no mask [batch, past+seq].");
    }
    Logits logits;
    const auto step = static_cast<std::size_t>(roles.longest_seq);
    for (std::size_t start = 0; start < longest; start += step) {
        Texts ids;
        std::vector<std::vector<bool>> keep;
        for (const Tokens& prompt : prompts) {
            ids.emplace_back();
            keep.emplace_back();
            const std::size_t missing = longest - prompt.size();
            for (std::size_t at = start; at < std::min(longest, start + step); ++at) {
                ids.back().push_back(at < missing ? 0 : prompt[at - missing]);
                keep.back().push_back(at >= missing);
            }
        }
        logits = decoding.push(ids, keep);
    }
    return logits;
}

/// Throws Error for scores of which no token is the likeliest.
void require_numbers(const double* row, std::size_t words) {
    if (std::any_of(row, row + words, [](double score) { return std::isnan(score); })) {
        throw Error("the model's scores are NaN, so that no token follows; attnport check says where they begin.");
    }
}

/// Throws FeedError where no token may follow.
void require_choice(double best) {
    if (best == never) {
        throw FeedError("rules: they leave no token that may follow; take some of them back, or make fewer tokens.");
    }
}

/// Makes log probabilities of scores; where no token may follow, they stay as they are.
void make_logs(double* row, std::size_t words) {
    const double largest = *std::max_element(row, row + words);
    if (largest == never) return;
    double sum = 0;
    for (std::size_t at = 0; at < words; ++at) sum += std::exp(row[at] - largest);
    const double whole = largest + std::log(sum);
    for (std::size_t at = 0; at < words; ++at) row[at] -= whole;
}

/// One token more for every text.
Logits grown(Decoding& decoding, const Tokens& tokens) {
    Texts ids;
    ids.reserve(tokens.size());
    for (const std::int64_t token : tokens) ids.push_back({token});
    return decoding.push(ids, std::vector<std::vector<bool>>(tokens.size(), {true}));
}

/// A number from 0 to below 1, the same for a seed on every platform.
double drawn(std::mt19937_64& random) { return static_cast<double>(random() >> 11U) * 0x1.0p-53; }

/// The places of the scores, from the largest on; equal ones in their order.
std::vector<std::size_t> sorted(const std::vector<double>& scores, std::size_t count) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(count, order.size()));
    std::partial_sort(order.begin(), end, order.end(), [&](std::size_t one, std::size_t other) {
        return scores[one] != scores[other] ? scores[one] > scores[other] : one < other;
    });
    order.erase(end, order.end());
    return order;
}

std::int64_t chosen(const double* row, std::size_t words, const GenerateOptions& options, std::mt19937_64& random) {
    if (options.temperature == 0) return std::max_element(row, row + words) - row;
    const std::vector<double> scores(row, row + words);
    const std::size_t most = options.top_k == 0 ? words : static_cast<std::size_t>(options.top_k);
    const std::vector<std::size_t> order = sorted(scores, most);
    std::vector<double> weights;
    weights.reserve(order.size());
    for (const std::size_t at : order) {
        weights.push_back(std::exp((scores[at] - scores[order[0]]) / options.temperature));
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
    const double at = drawn(random) * bounds.back();
    const auto found = std::upper_bound(bounds.begin(), bounds.end(), at);
    const auto place = std::min(static_cast<std::size_t>(found - bounds.begin()), order.size() - 1);
    return static_cast<std::int64_t>(order[place]);
}

Texts followed(Decoding& decoding, Logits logits, const Texts& prompts, const GenerateOptions& options,
               const Rules& rules, const Tokens& stop) {
    const Ruled ruled(rules, stop, options.max_tokens);
    const std::size_t count = prompts.size();
    std::mt19937_64 random(options.seed ? *options.seed : std::random_device{}());
    Texts texts(count);
    std::vector<bool> ended(count, false);
    for (std::int64_t number = 1;; ++number) {
        Tokens next;
        for (std::size_t text = 0; text < count; ++text) {
            double* const row = logits.row(text);
            require_numbers(row, logits.words);
            if (!ended[text]) {
                ruled.apply(row, logits.words, prompts[text], texts[text]);
                require_choice(*std::max_element(row, row + logits.words));
            }
            next.push_back(chosen(row, logits.words, options, random));
            if (ended[text]) continue;
            texts[text].push_back(next.back());
            if (options.on_token) options.on_token(text, next.back());
            ended[text] = holds(stop, next.back());
        }
        const bool over = std::all_of(ended.begin(), ended.end(), [](bool end) { return end; });
        if (over || number == options.max_tokens) return texts;
        logits = grown(decoding, next);
    }
}

/// The beams of one prompt, and its texts that have ended.
class Beams {
public:
    /// All are kept by reference.
    Beams(const Tokens& prompt, const Rules& rules, const Ruled& ruled, const Tokens& stop)
        : prompt_(prompt), rules_(rules), ruled_(ruled), stop_(stop), count_(static_cast<std::size_t>(rules.beams)),
          // They are the same at first, so that one counts.
          scores_(count_, never), texts_(count_), parents_(count_, 0) {
        scores_[0] = 0;
    }

    /// The best continuations of all beams, in their order: so many that as many as there are beams do not end.
    void grow(Logits& logits, std::size_t first) {
        std::vector<double> every;
        every.reserve(count_ * logits.words);
        for (std::size_t beam = 0; beam < count_; ++beam) {
            double* const row = logits.row(first + beam);
            require_numbers(row, logits.words);
            make_logs(row, logits.words);
            ruled_.apply(row, logits.words, prompt_, texts_[beam]);
            if (rules_.renormalize) make_logs(row, logits.words);
            for (std::size_t at = 0; at < logits.words; ++at) every.push_back(scores_[beam] + row[at]);
        }
        const std::vector<std::size_t> order = sorted(every, std::max<std::size_t>(2, 1 + stop_.size()) * count_);
        std::vector<double> scores;
        Texts texts;
        std::vector<std::size_t> parents;
        for (std::size_t rank = 0; rank < order.size(); ++rank) {
            const std::size_t parent = order[rank] / logits.words;
            Tokens text = texts_[parent];
            text.push_back(static_cast<std::int64_t>(order[rank] % logits.words));
            if (!holds(stop_, text.back())) {
                if (texts.size() == count_) continue;
                scores.push_back(every[order[rank]]);
                texts.push_back(std::move(text));
                parents.push_back(parent);
            } else if (rank < count_ && !over_) {
                end(every[order[rank]], std::move(text));
            }
        }
        scores_ = std::move(scores);
        texts_ = std::move(texts);
        parents_ = std::move(parents);
    }

    /// Whether no beam can become better than the texts that have ended; asked where another step can follow.
    bool settled() {
        over_ = over_ || nothing_follows();
        return over_;
    }

    /// The text of the best score, of those that have ended and those that the end of the run cut.
    Tokens best() {
        for (std::size_t beam = 0; !over_ && beam < scores_.size(); ++beam) end(scores_[beam], texts_[beam]);
        if (ended_.empty()) require_choice(never);
        return ended_.front().second;
    }

    [[nodiscard]] const std::vector<std::size_t>& parents() const { return parents_; }
    [[nodiscard]] const Texts& texts() const { return texts_; }

private:
    /// Whether no beam can become better than the texts that have ended, or goes on at all.
    [[nodiscard]] bool nothing_follows() const {
        double best = never;
        if (!scores_.empty()) best = *std::max_element(scores_.begin(), scores_.end());
        if (ended_.empty()) require_choice(best);
        if (best == never) return true;
        if (ended_.size() < count_) return false;
        return rules_.early_stopping || weighed(best, texts_[0]) <= ended_.back().first;
    }

    void end(double score, Tokens text) {
        if (score == never) return;  // which no rule allows, or which follows a beam that does not count yet
        const double weight = weighed(score, text);
        const auto behind = [](double one, const std::pair<double, Tokens>& other) { return one > other.first; };
        ended_.insert(std::upper_bound(ended_.begin(), ended_.end(), weight, behind), {weight, std::move(text)});
        if (ended_.size() > count_) ended_.pop_back();
    }

    [[nodiscard]] double weighed(double score, const Tokens& text) const {
        return score / std::pow(static_cast<double>(text.size()), rules_.length_penalty);
    }

    const Tokens& prompt_;
    const Rules& rules_;
    const Ruled& ruled_;
    const Tokens& stop_;
    std::size_t count_;
    std::vector<double> scores_;  ///< the log probability of each beam
    Texts texts_;
    std::vector<std::size_t> parents_;  ///< which beam each was before the last step
    bool over_ = false;                 ///< no beam can become better than the texts that have ended
    std::vector<std::pair<double, Tokens>> ended_;
};

Texts searched(Decoding& decoding, const Logits& logits, const Texts& prompts, const GenerateOptions& options,
               const Rules& rules, const Tokens& stop) {
    const auto beams = static_cast<std::size_t>(rules.beams);
    const std::size_t count = prompts.size();
    const Ruled ruled(rules, stop, options.max_tokens);
    std::vector<std::size_t> repeated;
    Logits of_beams;
    of_beams.words = logits.words;
    for (std::size_t row = 0; row < count * beams; ++row) {
        repeated.push_back(row / beams);
        of_beams.scores.insert(of_beams.scores.end(), logits.row(row / beams), logits.row(row / beams) + logits.words);
    }
    decoding.take(repeated);
    std::vector<Beams> every;
    for (const Tokens& prompt : prompts) every.emplace_back(prompt, rules, ruled, stop);
    for (std::int64_t length = 1;; ++length) {
        for (std::size_t text = 0; text < count; ++text) every[text].grow(of_beams, text * beams);
        if (length == options.max_tokens) break;
        bool over = true;
        for (Beams& one : every) over = one.settled() && over;
        if (over) break;
        std::vector<std::size_t> rows;
        Tokens tokens;
        for (std::size_t text = 0; text < count; ++text) {
            for (const std::size_t parent : every[text].parents()) rows.push_back(text * beams + parent);
            for (const Tokens& beam : every[text].texts()) tokens.push_back(beam.back());
        }
        decoding.take(rows);
        of_beams = grown(decoding, tokens);
    }
    Texts found;
    for (std::size_t text = 0; text < count; ++text) {
        found.push_back(every[text].best());
        for (const std::int64_t token : found.back()) {
            if (options.on_token) options.on_token(text, token);
        }
    }
    return found;
}

}  // namespace

Texts generated(const Run& run, const MakeSteps& make_steps, const IO& io, const Texts& prompts,
                const GenerateOptions& options) {
    Rules rules = options.rules.value_or(io.rules);
    if (!options.rules && options.temperature > 0) rules.beams = 1;  // who draws asks for no search
    check(options, rules);
    const Roles roles = roles_of(io);
    const Tokens stop = options.stop ? *options.stop : io.stop;
    Decoding decoding(run, io, roles, make_steps, options.context);
    Logits logits = begun(decoding, roles, prompts, options.max_tokens);
    if (rules.beams > 1) return searched(decoding, logits, prompts, options, rules, stop);
    return followed(decoding, std::move(logits), prompts, options, rules, stop);
}

}  // namespace attnport::reader
