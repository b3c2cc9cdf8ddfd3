// The flame graph: bytes by stack, the outermost frame at the top. A click shows one flame alone;
// Escape, or a click on the top, shows all. Arrow keys go from flame to flame.
//
// The colour is that of the file, or with peers how much more (red) or less (blue) than theirs.

import { useMemo, useState } from 'preact/hooks';

import { colour, rgb, scheme } from '../theme';
import type { Frame } from '../types';
import { bytes, plural } from '../units';
import { visible } from '../visible';
import { shortLineOf } from '../words';
import { Canvas, type Paint } from './canvas';
import {
  fitting,
  flameAt,
  flames,
  pathOf,
  placed,
  weight,
  type Flame,
  type Placed,
  type StackBytes,
} from './flame';

const ROW = 19;
const ROWS_MAX = 60;
/** Pixels that a name needs. */
const NAME_MIN = 30;

interface FlameGraphOf {
  frames: Frame[];
  stacks: StackBytes[];
  /** Whether colours show the difference from the peers. */
  isAgainstPeers: boolean;
  /** What stands for the whole. */
  whole: string;
  /** What the bytes beside it are of. */
  others: string;
}

export function FlameGraph(of: FlameGraphOf) {
  const { frames, stacks, isAgainstPeers } = of;
  const root = useMemo(() => flames(stacks), [stacks]);
  const [path, setPath] = useState<number[]>([]);
  const [at, setAt] = useState<Flame | null>(null);
  const focus = flameAt(root, path);
  const all = useMemo(() => placed(focus), [focus]);
  const depth = Math.min(
    ROWS_MAX,
    all.reduce((most, { flame }) => Math.max(most, flame.depth), 0) + 1,
  );
  const nameOf = (flame: Flame) => (flame.frame < 0 ? of.whole : shown(frames[flame.frame]));
  const colours = scheme.value;
  const paint = useMemo<Paint>(
    () => (context, width) => {
      context.font = '12px system-ui, sans-serif';
      context.textBaseline = 'middle';
      for (const place of all) {
        const tint = isAgainstPeers ? difference(place.flame) : tintOf(frames[place.flame.frame]);
        draw(context, width, place, tint, nameOf(place.flame), place.flame === at);
      }
    },
    [all, at, isAgainstPeers, colours],
  );
  const found = (event: MouseEvent): Flame | null => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const row = Math.floor((event.clientY - box.top) / ROW);
    const hit = all.find(
      ({ flame, from, to }) => flame.depth === row && share >= from && share < to,
    );
    return hit?.flame ?? null;
  };
  const show = (flame: Flame | null) => flame && setPath(pathOf(flame));
  const key = (event: KeyboardEvent) => {
    if (event.key === 'Escape') return setPath([]);
    if (event.key === 'Enter') return show(at);
    const next = moved(event.key, at ?? focus);
    if (!next) return;
    event.preventDefault();
    setAt(next);
  };
  const said = words(at ?? focus, nameOf(at ?? focus), root, of.others);
  return (
    <figure>
      <div class="chart">
        <Canvas
          height={depth * ROW}
          paint={paint}
          class="flames"
          tabIndex={0}
          role="application"
          aria-label={`Flame graph; the table of lines beside it has the same bytes. ${said}`}
          onPointerMove={event => setAt(found(event))}
          onPointerLeave={() => setAt(null)}
          onClick={event => show(found(event))}
          onKeyDown={key}
        />
      </div>
      <p class="readout soft" role="status">
        {said}
      </p>
    </figure>
  );
}

const shown = ({ file, line, function: name }: Frame) =>
  name ? `${name}  ${shortLineOf({ file, line })}` : `${file}:${line}`;

function words(of: Flame, name: string, root: Flame, others: string): string {
  const { bytes: own, blocks, peerBytes } = of;
  const share = root.bytes > 0 ? ` (${Math.round((own / root.bytes) * 100)} %)` : '';
  const more = root.peerBytes > 0 ? `, ${others} ${bytes(peerBytes)}` : '';
  return `${name}: ${bytes(own)}${share} in ${plural(blocks, 'block')}${more}`;
}

function moved(key: string, at: Flame): Flame | null {
  const beside = (by: number) => {
    const all = at.parent?.children ?? [];
    return all[all.indexOf(at) + by] ?? null;
  };
  switch (key) {
    case 'ArrowUp':
      return at.parent;
    case 'ArrowDown':
      return at.children[0] ?? null;
    case 'ArrowLeft':
      return beside(-1);
    case 'ArrowRight':
      return beside(1);
    default:
      return null;
  }
}

function draw(
  context: CanvasRenderingContext2D,
  width: number,
  { flame, from, to }: Placed,
  tint: string,
  name: string,
  isAt: boolean,
) {
  const [x, y, wide] = [from * width, flame.depth * ROW, (to - from) * width];
  context.fillStyle = tint;
  context.fillRect(x, y, Math.max(1, wide - 1), ROW - 1);
  if (isAt) {
    context.strokeStyle = colour('--text');
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(1, wide - 3), ROW - 3);
  }
  if (wide < NAME_MIN) return;
  context.fillStyle = colour('--text');
  const text = fitting(visible(name), wide - 8, text => context.measureText(text).width);
  context.fillText(text, x + 4, y + ROW / 2);
}

const mixed = (from: number[], to: number[], weight: number) =>
  `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * weight)).join(',')})`;

/** How far the colours go: a name on them has a contrast of 4.5:1. */
const DIFFERENCE_MAX = 0.5;

/** How much more or less than the peers, as a colour. */
function difference(flame: Flame): string {
  const share = (flame.bytes - flame.peerBytes) / (weight(flame) || 1);
  const end = rgb(share < 0 ? '--heat-less' : '--heat-more');
  return mixed(rgb('--heat-calm'), end, Math.abs(share) * DIFFERENCE_MAX);
}

/** The same colour for all frames of a file. */
function tintOf(frame: Frame | undefined): string {
  if (!frame) return colour('--line');
  let hash = 7;
  for (const char of frame.file) hash = (hash * 31 + char.charCodeAt(0)) % 9973;
  const tones = ['--tone-0', '--tone-1', '--tone-2', '--tone-3', '--tone-4', '--tone-5'];
  return colour(tones[hash % tones.length]);
}
