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
const told = (sizes: ReadonlyMap<string, number>) => [...sizes].map(([name, size]) => `${name}=${size}`).join(', ');
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
  const tokens = text.match(/\b(min|max) *\(|[A-Za-z_]\w*|\d+|\/\/|[-+*%(),]/g) ?? [];
  const strength = (token?: string) => ({ '+': 1, '-': 1, '*': 2, '//': 2, '%': 2 })[token ?? ''] ?? 0;
  function value(): number {
    const token = tokens.shift() ?? '';
    if (token.endsWith('(')) {
      const found = [expression(1)];
      for (let next = tokens.shift(); next !== ')'; next = tokens.shift()) {
        if (next !== ',' || token === '(') throw new FeedError(`the size '${text}': a ')' is missing.`);
        found.push(expression(1));
      }
      return token.startsWith('max') ? Math.max(...found) : Math.min(...found);
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

function refuse(spec: TensorSpec, got: string, expected: string): never {
  throw new FeedError(`input '${spec.name}': got ${got}; expected ${expected}.`);
}

/** Compares inputs with the contract; returns the size of each named dim. Throws FeedError. */
export function checkFeeds(io: Contract, feeds: Readonly<Record<string, Tensor>>): Map<string, number> {
  const names = io.inputs.map((spec) => spec.name);
  const other = Object.keys(feeds).find((name) => !names.includes(name));
  if (other !== undefined) throw new FeedError(`input '${other}': the model has no such input; expected ${names.join(', ')}.`);
  const sizes = new Map<string, number>();
  for (const spec of io.inputs) {
    const given = feeds[spec.name];
    if (given === undefined) throw new FeedError(`input '${spec.name}' is missing; expected ${said(spec)}.`);
    if (given.type !== spec.dtype) refuse(spec, `dtype ${given.type}`, spec.dtype);
    const rank = given.dims.length;
    if (rank !== spec.dims.length) {
      refuse(spec, `rank ${rank}, shape [${given.dims.join(', ')}]`, `rank ${spec.dims.length}, ${said(spec)}`);
    }
    spec.dims.forEach((name, axis) => {
      const dim = io.dims.find((each) => each.name === name);
      if (dim === undefined) return;
      const size = given.dims[axis], known = sizes.get(dim.name), got = `${name}=${size} on axis ${axis}`;
      if (known !== undefined && known !== size) {
        refuse(spec, got, `${name}=${known} as in input '${io.inputs.find((each) => each.dims.includes(name))?.name}'`);
      }
      if (!takes(dim, size)) refuse(spec, got, span(dim));
      sizes.set(dim.name, size);
    });
  }
  for (const spec of io.inputs) {
    const given = feeds[spec.name];
    spec.dims.forEach((dim, axis) => {
      if (given.dims[axis] === evaluate(dim, sizes)) return;
      const at = typeof dim === 'number' ? '' : ` with ${told(sizes)}`;
      refuse(spec, `size ${given.dims[axis]} on axis ${axis}`, `${dim}${at}`);
    });
    const counted = io.masks.find((mask) => mask.input === spec.name && mask.carries === 'lengths');
    const most = spec.high !== null ? spec.high - 1 : counted?.keys ? sizes.get(counted.keys) : undefined;
    if (most === undefined) continue;
    let [low, high] = [Infinity, -Infinity];
    for (const value of given.data) [low, high] = [Math.min(low, Number(value)), Math.max(high, Number(value))];
    if (low < 0 || high > most) refuse(spec, `values ${low} to ${high}`, `0 to ${most}`);
  }
  return sizes;
}
