// What the colours of a map of segments mean.

import { useMemo } from 'preact/hooks';

import { Canvas, type Paint } from '../charts/canvas';
import { lineTint, type Colours } from '../charts/segment_map';
import { huesOf, linesOf } from '../charts/segments';
import { colour, scheme } from '../theme';
import type { Segments } from '../types';
import { bytes } from '../units';

/** Lines that the legend names. */
const LINES_MAX = 8;

interface LegendOf {
  map: Segments;
  colours: Colours;
  unit: string;
  /** Whether blocks are pale because they were allocated later. */
  isPale: boolean;
}

export function MapLegend({ map, colours, unit, isPale }: LegendOf) {
  const entries = useMemo(() => entriesOf(map, colours, unit), [map, colours, unit, scheme.value]);
  return (
    <figcaption class="map-legend">
      {entries.map(([tint, words]) => (
        <span>
          <Swatch tint={tint} /> {words}
        </span>
      ))}
      <span>
        <Swatch tint={colour('--free')} /> free
      </span>
      {isPale ? <span>pale: allocated later</span> : null}
    </figcaption>
  );
}

type Entry = [tint: string, words: string];

function entriesOf(map: Segments, colours: Colours, unit: string): Entry[] {
  if (colours === 'age') {
    return [
      [colour('--step-min'), `allocated in ${unit} 1 or before`],
      [colour('--heat-more'), `allocated in ${unit} ${map.last_step}`],
    ];
  }
  if (colours === 'state') {
    return [
      [colour('--step-min'), 'allocated'],
      [colour('--peak'), 'pending free'],
      [colour('--peer'), 'small blocks, merged'],
    ];
  }
  const [lines, hues] = [linesOf(map), huesOf(map)];
  const named = lines.slice(0, LINES_MAX).map(({ line, bytes: size }): Entry => {
    const { file, line: number } = map.frames[line];
    return [lineTint(hues[line]), `${file.split('/').at(-1)}:${number}, ${bytes(size)}`];
  });
  const more = lines.length - named.length;
  return [
    ...named,
    ...(more > 0
      ? [[colour('--line'), `${more} more lines, in these and further colours`] as Entry]
      : []),
    [colour('--peer'), 'without a line, or merged'],
  ];
}

function Swatch({ tint }: { tint: string }) {
  const paint = useMemo<Paint>(
    () => (context, width) => {
      context.fillStyle = tint;
      context.fillRect(0, 0, width, 14);
    },
    [tint],
  );
  return <Canvas height={14} paint={paint} class="swatch" aria-hidden="true" />;
}
