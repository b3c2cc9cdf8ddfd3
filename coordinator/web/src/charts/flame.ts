// The tree of a flame graph: bytes by stack, outermost frame first. Pure.

/** Bytes of one stack; its frames by index, outermost first. */
export interface StackBytes {
  frames: number[];
  bytes: number;
  blocks: number;
  peer_bytes: number;
}

/** A frame with all stacks that go through it. */
export interface Flame {
  /** Index of the frame; -1 for the root. */
  frame: number;
  bytes: number;
  blocks: number;
  peerBytes: number;
  depth: number;
  parent: Flame | null;
  /** Those with the most bytes first. */
  children: Flame[];
}

const made = (frame: number, parent: Flame | null): Flame => ({
  frame,
  bytes: 0,
  blocks: 0,
  peerBytes: 0,
  depth: parent ? parent.depth + 1 : 0,
  parent,
  children: [],
});

export function flames(stacks: StackBytes[]): Flame {
  const root = made(-1, null);
  for (const stack of stacks) {
    let at = root;
    add(at, stack);
    for (const frame of stack.frames) {
      let next = at.children.find(child => child.frame === frame);
      if (!next) {
        next = made(frame, at);
        at.children.push(next);
      }
      at = next;
      add(at, stack);
    }
  }
  sort(root);
  return root;
}

function add(flame: Flame, { bytes, blocks, peer_bytes }: StackBytes) {
  flame.bytes += bytes;
  flame.blocks += blocks;
  flame.peerBytes += peer_bytes;
}

/** The bytes that a flame is as wide as: what only peers have has a width too. */
export const weight = ({ bytes, peerBytes }: Flame): number => Math.max(bytes, peerBytes);

function sort(flame: Flame) {
  flame.children.sort((a, b) => weight(b) - weight(a));
  flame.children.forEach(sort);
}

/** A flame with its place: `from` and `to` are shares of the width. */
export interface Placed {
  flame: Flame;
  from: number;
  to: number;
}

/** Less than this share of the width is not drawn. */
const SHARE_MIN = 0.0008;

/** Where the focused flame and all below it are; those above it have the whole width. */
export function placed(focus: Flame): Placed[] {
  const found: Placed[] = [];
  for (let above = focus.parent; above; above = above.parent)
    found.push({ flame: above, from: 0, to: 1 });
  const place = (flame: Flame, from: number, to: number) => {
    found.push({ flame, from, to });
    const sum = Math.max(
      weight(flame),
      flame.children.reduce((all, child) => all + weight(child), 0),
    );
    let at = from;
    for (const child of flame.children) {
      const next = at + ((to - from) * weight(child)) / (sum || 1);
      if (next - at >= SHARE_MIN) place(child, at, next);
      at = next;
    }
  };
  place(focus, 0, 1);
  return found;
}

/** The frames of a flame by index, outermost first. */
export function pathOf(flame: Flame): number[] {
  const path: number[] = [];
  for (let at: Flame | null = flame; at && at.frame >= 0; at = at.parent) path.unshift(at.frame);
  return path;
}

/** The flame at a path; the nearest one above where there is none. */
export function flameAt(root: Flame, path: number[]): Flame {
  let at = root;
  for (const frame of path) {
    const next = at.children.find(child => child.frame === frame);
    if (!next) break;
    at = next;
  }
  return at;
}

/** As much of a function with its line as there is room for: all, without its line, or cut; nothing
 * where less than two characters fit. */
export function fitting(name: string, room: number, widthOf: (text: string) => number): string {
  const short = name.split('  ')[0];
  const whole = [name, short].find(text => widthOf(text) <= room);
  if (whole !== undefined) return whole;
  const letters = [...short];
  let count = Math.ceil((letters.length * room) / widthOf(short));
  const cut = () => `${letters.slice(0, count).join('')}…`;
  while (count > 0 && widthOf(cut()) > room) count -= 1;
  return count > 1 ? cut() : '';
}
