// The contract of a model, and the checks of what goes in; in the words of the reader in Python.

/** An error of a bundle or its use; its message says what was got and what was expected. */
export class BundleError extends Error {}
/** Inputs that do not fit the contract. */
export class FeedError extends BundleError {}
/** A file that is not the one that was bundled. */
export class IntegrityError extends BundleError {}

export type TypedArray = Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array;
/** An array with its shape: what ONNX Runtime's `Tensor` has. */
export interface Tensor { readonly type: string; readonly dims: readonly number[]; readonly data: TypedArray }

export interface Dim { name: string; min: number; opt: number; max: number; step: number }
export interface TensorSpec { name: string; dtype: string; dims: (string | number)[]; high: number | null; labels: string[] }
export interface MaskSpec { kinds: string[]; input: string | null; polarity: string; carries: string; keys: string | null }
export interface Contract { inputs: TensorSpec[]; outputs: TensorSpec[]; dims: Dim[]; masks: MaskSpec[] }

const said = (spec: TensorSpec) => `${spec.name}=${spec.dtype}[${spec.dims.join(',')}]`;
const span = (dim: Dim) => `${dim.min} to ${dim.max}${dim.step > 1 ? ` in steps of ${dim.step}` : ''}`;
export const takes = (dim: Dim, size: number) => dim.min <= size && size <= dim.max && size % dim.step === 0;
/** The smallest size that a dim takes and that is `size` or more; the largest one if there is none. */
export const atLeast = (dim: Dim, size: number) =>
  Math.max(dim.min, Math.min(Math.ceil(size / dim.step) * dim.step, dim.max));

/**
 * The value of a size: a number, a dim, or an expression such as `past+seq` or `max(seq,4)`.
 * Throws FeedError where it has none.
 */
export function evaluate(text: string | number, sizes: ReadonlyMap<string, number>): number {
  if (typeof text === 'number') return text;
  const tokens = text.match(/[A-Za-z_]\w*|\d+|\/\/|[-+*%(),]/g) ?? [];
  const strength = (token?: string) => ({ '+': 1, '-': 1, '*': 2, '//': 2, '%': 2 })[token ?? ''] ?? 0;
  const needed = (token: string) => {
    if (tokens.shift() !== token) throw new FeedError(`the size '${text}': a '${token}' is missing.`);
  };
  function value(): number {
    const token = tokens.shift() ?? '';
    if (token === '(' || (/^(min|max)$/.test(token) && tokens[0] === '(')) {
      if (token !== '(') tokens.shift();
      let found = expression(1);
      if (token !== '(') {
        needed(',');
        found = Math[token as 'min' | 'max'](found, expression(1));
      }
      needed(')');
      return found;
    }
    const found = /^\d+$/.test(token) ? Number(token) : sizes.get(token);
    if (found === undefined) throw new FeedError(`the size '${text}': ${token || 'its end'} has no size.`);
    return found;
  }
  function expression(least: number): number {
    let first = value();
    while (strength(tokens[0]) >= least) {
      const operation = tokens.shift() as string;
      const second = expression(strength(operation) + 1);
      if ('//%'.includes(operation) && second < 1) throw new FeedError(`the size '${text}': it divides by ${second}.`);
      first = operation === '+' ? first + second : operation === '-' ? first - second
        : operation === '*' ? first * second : operation === '//' ? Math.floor(first / second)
        : ((first % second) + second) % second;
    }
    return first;
  }
  const found = expression(1);
  if (tokens.length || found < 0 || !Number.isSafeInteger(found)) {
    throw new FeedError(`the size '${text}' has no value at ${told(sizes)}.`);
  }
  return found;
}

const told = (sizes: ReadonlyMap<string, number>) => [...sizes].map(([name, size]) => `${name}=${size}`).join(', ');

/** Compares inputs with the contract; returns the size of each named dim. Throws FeedError. */
export function checkFeeds(io: Contract, feeds: Readonly<Record<string, Tensor>>): Map<string, number> {
  const names = io.inputs.map((spec) => spec.name);
  for (const name of Object.keys(feeds)) {
    if (!names.includes(name)) {
      throw new FeedError(`input '${name}': the model has no such input; expected ${names.join(', ')}.`);
    }
  }
  const known = new Map(io.dims.map((dim) => [dim.name, dim]));
  const sizes = new Map<string, number>();
  const by = new Map<string, string>();
  for (const spec of io.inputs) {
    const given = feeds[spec.name];
    const problem = `input '${spec.name}'`;
    if (given === undefined) throw new FeedError(`${problem} is missing; expected ${said(spec)}.`);
    if (given.type !== spec.dtype) throw new FeedError(`${problem}: got dtype ${given.type}; expected ${spec.dtype}.`);
    if (given.dims.length !== spec.dims.length) {
      throw new FeedError(`${problem}: got rank ${given.dims.length}, shape [${given.dims.join(', ')}]; ` +
        `expected rank ${spec.dims.length}, ${said(spec)}.`);
    }
    spec.dims.forEach((name, axis) => {
      const dim = known.get(String(name));
      if (typeof name === 'number' || dim === undefined) return;
      const got = given.dims[axis];
      const first = sizes.get(name);
      if (first !== undefined && first !== got) {
        throw new FeedError(`${problem}: got ${name}=${got} on axis ${axis}; ` +
          `expected ${name}=${first} as in input '${by.get(name)}'.`);
      }
      if (!takes(dim, got)) throw new FeedError(`${problem}: got ${name}=${got} on axis ${axis}; expected ${span(dim)}.`);
      sizes.set(name, got);
      if (!by.has(name)) by.set(name, spec.name);
    });
  }
  for (const spec of io.inputs) {
    const given = feeds[spec.name];
    spec.dims.forEach((dim, axis) => {
      if (given.dims[axis] === evaluate(dim, sizes)) return;
      const at = typeof dim === 'number' ? '' : ` with ${told(sizes)}`;
      throw new FeedError(`input '${spec.name}': got size ${given.dims[axis]} on axis ${axis}; expected ${dim}${at}.`);
    });
    const counted = io.masks.find((mask) => mask.input === spec.name && mask.carries === 'lengths');
    const most = spec.high !== null ? spec.high - 1 : counted?.keys ? sizes.get(counted.keys) : undefined;
    if (most === undefined) continue;
    let [low, high] = [Infinity, -Infinity];
    for (const value of given.data) [low, high] = [Math.min(low, Number(value)), Math.max(high, Number(value))];
    if (low < 0 || high > most) {
      throw new FeedError(`input '${spec.name}': got values ${low} to ${high}; expected 0 to ${most}.`);
    }
  }
  return sizes;
}
