#include "rules.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "words.hpp"

namespace attnport::reader {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr std::int64_t most_beams = 1000;

bool is_token(std::int64_t token) { return token >= 0; }

/// Gives these tokens a score; those that the vocabulary does not have are passed over.
template <class List> void give(double* row, std::size_t words, const List& tokens, double score) {
    for (const std::int64_t token : tokens) {
        if (static_cast<std::size_t>(token) < words) row[token] = score;
    }
}

}  // namespace

std::string wrong_with(const Rules& rules) {
    const auto all = [](const Tokens& tokens) { return std::all_of(tokens.begin(), tokens.end(), is_token); };
    const auto& bad = rules.bad_words;
    if (!all(rules.suppress)) return "suppress: expected token ids of 0 or more";
    if (!all(rules.suppress_first)) return "suppress_first: expected token ids of 0 or more";
    if (!all(rules.forced_first)) return "forced_first: expected token ids of 0 or more";
    if (!all(rules.forced_last)) return "forced_last: expected token ids of 0 or more";
    if (!std::all_of(bad.begin(), bad.end(), [&](const Tokens& word) { return !word.empty() && all(word); })) {
        return "bad_words: expected lists of one or more token ids of 0 or more";
    }
    if (rules.min_length < 0) return "min_length: got " + std::to_string(rules.min_length) + "; expected 0 or more";
    if (rules.min_tokens < 0) return "min_tokens: got " + std::to_string(rules.min_tokens) + "; expected 0 or more";
    if (!(rules.repetition_penalty > 0)) {
        return "repetition_penalty: got " + fixed(rules.repetition_penalty, 2) + "; expected above 0";
    }
    if (rules.no_repeat_ngram < 0) {
        return "no_repeat_ngram: got " + std::to_string(rules.no_repeat_ngram) + "; expected 0 or more";
    }
    if (rules.beams < 1 || rules.beams > most_beams) {
        return "beams: got " + std::to_string(rules.beams) + "; expected 1 to " + std::to_string(most_beams);
    }
    return "";
}

Ruled::Ruled(const Rules& rules, const Tokens& stop, std::int64_t max_tokens)
    : rules_(rules), stop_(stop), max_tokens_(static_cast<std::size_t>(max_tokens)) {
    std::copy_if(rules.bad_words.begin(), rules.bad_words.end(), std::back_inserter(bad_words_), [&](const Tokens& word) {
        return word.size() > 1 || std::find(stop.begin(), stop.end(), word[0]) == stop.end();
    });
}

void Ruled::apply(double* row, std::size_t words, const Tokens& prompt, const Tokens& added) const {
    Tokens text = prompt;
    text.insert(text.end(), added.begin(), added.end());
    // In the order of transformers, as a rule may be about what another one left.
    if (rules_.repetition_penalty != 1) {
        for (const std::int64_t token : std::set<std::int64_t>(text.begin(), text.end())) {
            if (static_cast<std::size_t>(token) >= words) continue;
            const double score = row[token];
            row[token] = score < 0 ? score * rules_.repetition_penalty : score / rules_.repetition_penalty;
        }
    }
    give(row, words, completing(text), never);
    if (text.size() < static_cast<std::size_t>(rules_.min_length) ||
        added.size() < static_cast<std::size_t>(rules_.min_tokens)) {
        give(row, words, stop_, never);
    }
    const auto force = [&](const Tokens& tokens) {
        std::fill(row, row + words, never);
        give(row, words, tokens, 0);
    };
    const bool forces_first = !rules_.forced_first.empty();
    if (forces_first && text.size() == 1) force(rules_.forced_first);
    if (!rules_.forced_last.empty() && added.size() + 1 == max_tokens_) force(rules_.forced_last);
    give(row, words, rules_.suppress, never);
    // What was forced behind a single token is no choice, so that the first one is the next.
    const bool behind_forced = forces_first && prompt.size() == 1;
    if (added.size() == (behind_forced ? 1U : 0U)) give(row, words, rules_.suppress_first, never);
}

/// The tokens that would complete a bad word, or repeat what may be in the text once.
Tokens Ruled::completing(const Tokens& text) const {
    Tokens found;
    for (const Tokens& word : bad_words_) {
        const std::size_t before = word.size() - 1;
        if (before > text.size()) continue;
        if (std::equal(word.begin(), word.end() - 1, text.end() - static_cast<std::ptrdiff_t>(before))) {
            found.push_back(word.back());
        }
    }
    const auto size = static_cast<std::size_t>(rules_.no_repeat_ngram);
    if (size == 0 || size > text.size()) return found;
    const auto before = static_cast<std::ptrdiff_t>(size - 1);
    const auto begun = text.end() - before;
    for (auto at = text.begin(); text.end() - at > before; ++at) {
        if (std::equal(begun, text.end(), at)) found.push_back(at[before]);
    }
    return found;
}

}  // namespace attnport::reader
