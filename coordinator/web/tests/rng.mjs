// Random numbers that are the same in every run.

/** Numbers below `most`, the same in every run. */
export function numbers(seed) {
  let state = seed;
  return most => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}
