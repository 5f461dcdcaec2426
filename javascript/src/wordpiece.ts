// BERT's tokenizer, from `tokenizer.json` and the table of characters beside it, as the readers in Python and C++ do it:
// each character becomes what the table says, words are split at spaces and cut into the longest pieces of a vocabulary.

import { BundleError } from './contract.js';

export interface Row { ids: number[]; types: number[] }
/** A text, or a pair of texts such as a query and a document, which become one row. */
export type Text = string | readonly [string, string];
export interface Words {
  padId: number;
  special: ReadonlySet<number>;
  /** The ids of one text or of two with the tokens around it, cut at its end so that there are at most `longest`. */
  encode(texts: readonly string[], longest: number): Row;
}

interface Part { ids: number[]; text: number; type: number }
const total = (parts: { length: number }[]) => parts.reduce((sum, part) => sum + part.length, 0);

export function wordPiece(tokenizer: string, table: string): Words {
  const { model, post_processor: after, added_tokens, padding } = JSON.parse(tokenizer);
  const changed = characters(table);
  const vocabulary = new Map(Object.entries<number>(model.vocab));
  const longestPiece = [...vocabulary.keys()].reduce((longest, piece) => Math.max(longest, piece.length), 0);
  const tokens: { content: string; id: number; special: boolean }[] = added_tokens;
  const added = new Map(tokens.filter(({ content }) => content).map(({ content, id }) => [content, id]));
  // Of two tokens that begin at the same place the longer one counts.
  const escaped = [...added.keys()].sort((one, other) => other.length - one.length)
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const split = new RegExp(`(${escaped.join('|') || '(?!)'})`, 'u');
  const around = ['single', 'pair'].map((which) => after[which].map((part: Record<string, any>): Part => {
    const [[kind, place]] = Object.entries(part);
    const text = kind === 'Sequence' ? 'AB'.indexOf(place.id) : -1;
    return { ids: text < 0 ? after.special_tokens[place.id].ids : [], text, type: place.type_id };
  })) as [Part[], Part[]];

  /** Cuts off the longest piece in the vocabulary repeatedly; the unknown token if there is none at any place. */
  function cut(text: string): number[] {
    const word = Array.from(text), ids: number[] = [], unknown = [vocabulary.get(model.unk_token) as number];
    if (word.length > model.max_input_chars_per_word) return unknown;
    for (let start = 0, end; start < word.length; start = end) {
      const piece = (last: number) =>
        vocabulary.get((start ? model.continuing_subword_prefix : '') + word.slice(start, last).join(''));
      for (end = Math.min(word.length, start + longestPiece); end > start && piece(end) === undefined;) end -= 1;
      if (end === start) return unknown;
      ids.push(piece(end) as number);
    }
    return ids;
  }

  const idsOf = (text: string) => text.split(split).flatMap((part) => {
    const token = added.get(part);
    return token !== undefined ? [token] : Array.from(part, changed).join('').split(' ').flatMap(cut);
  });

  function encode(texts: readonly string[], longest: number): Row {
    let found = texts.map(idsOf);
    const parts = around[found.length - 1];
    const room = Math.max(longest - total(parts.map(({ ids }) => ids)), 0);
    if (total(found) > room) { // of two, as the package: the shorter one is cut to no less than half
      const short = found.length === 2 && found[1].length < found[0].length ? 1 : 0;
      const kept = Math.min(found[short].length, found.length === 2 ? Math.floor(room / 2) : room);
      found = found.map((ids, at) => ids.slice(0, at === short ? kept : room - kept));
    }
    const pieces = parts.map((part) => ({ ids: part.text < 0 ? part.ids : found[part.text], type: part.type }));
    return { ids: pieces.flatMap(({ ids }) => ids), types: pieces.flatMap(({ ids, type }) => ids.map(() => type)) };
  }

  const special = new Set(tokens.filter((token) => token.special).map(({ id }) => id));
  const known = ['[PAD]', '<pad>', '<|pad|>', '<|endoftext|>'].find((token) => added.has(token)) ?? '';
  return { padId: padding?.pad_id ?? added.get(known) ?? 0, special, encode };
}

const LINE = /^[0-9A-F]{1,6} [0-9A-F]{1,6} (space|removed|apart|[+-] [0-9A-F]{1,6}|=( [0-9A-F]{1,6})+)$/;

/** What a character becomes by `tokenizer.chars`: nothing, a space, others, or itself with spaces around it. */
function characters(table: string): (character: string) => string {
  const rules = table.trimEnd().split('\n').map((line) => {
    if (!LINE.test(line)) throw new BundleError(`tokenizer.chars: got '${line}'; expected two characters and a rule.`);
    const [first, last, what, ...codes] = line.split(' ');
    return { first: parseInt(first, 16), last: parseInt(last, 16), what, codes: codes.map((code) => parseInt(code, 16)) };
  });
  const rule = (code: number) => {
    let [low, high] = [0, rules.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rules[middle].first <= code) low = middle + 1;
      else high = middle;
    }
    return low && code <= rules[low - 1].last ? rules[low - 1] : undefined;
  };
  const apart = (code: number) => {
    const what = rule(code)?.what, character = String.fromCodePoint(code);
    return what === 'space' ? ' ' : what === 'removed' ? '' : what === 'apart' ? ` ${character} ` : character;
  };
  const made = new Map<string, string>();
  return (character) => {
    if (!made.has(character)) {
      const code = character.codePointAt(0) as number, { what, codes = [] } = rule(code) ?? {};
      const step = (codes[0] ?? 0) * (what === '-' ? -1 : 1);
      made.set(character, (what === '=' ? codes : [code + step]).map(apart).join(''));
    }
    return made.get(character) as string;
  };
}
