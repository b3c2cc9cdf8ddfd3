// Keys that slide through the events of a view: the view says what they do while it is shown.

import type { Which } from './charts/segments';

let turn: ((which: Which) => void) | null = null;

/** Goes to the event before or after; nothing where no view has events. */
export const turnEvent = (which: Which): void => turn?.(which);

/** Has the keys go through the events of a view; returns how they stop. */
export function withEvents(go: (which: Which) => void): () => void {
  turn = go;
  return () => {
    if (turn === go) turn = null;
  };
}
