// Where the bytes of each device are, stacked: the layers of its ledger and what they do not
// account for. What is not known of a layer is named, never drawn as 0.

import { make, svg } from '../elements.js';
import { bytes, isKnown } from '../units.js';
import { frame, key, scale, text } from './frame.js';

const [ROW, BAR, LEFT] = [26, 18, 64];
const ROWS_MAX = 32;

// Classes of the style sheet; a layer of a newer coordinator looks as what is unaccounted.
const KINDS = {
  requested: 'layer-0',
  'in use by tensors': 'layer-0',
  rounding: 'layer-1',
  'deferred frees': 'layer-2',
  cached: 'layer-3',
  'unused by tensors': 'layer-3',
  'inactive split': 'layer-4',
  'other code': 'layer-5',
  nccl: 'layer-6',
  'other processes': 'layer-7',
  free: 'layer-free',
};
const kind = name => KINDS[name] ?? 'layer-rest';

export function layersChart(ranks) {
  const devices = ranks.flatMap(rank =>
    rank.devices.map(device => ({ ...device, rank: rank.rank, isOnly: rank.devices.length === 1 })),
  );
  const rows = devices.map(row).filter(found => found.parts.length > 0);
  if (rows.length === 0) return make('p', { class: 'soft' }, 'no device has reported its layers');
  const shown = rows.slice(0, ROWS_MAX);
  const names = [...new Set(shown.flatMap(found => found.parts.map(part => part.name)))];
  const unknown = [...new Set(shown.flatMap(found => found.unknown))];
  const height = shown.length * ROW;
  return make(
    'figure',
    {},
    frame(height, width => drawn(shown, width, height)),
    make(
      'figcaption',
      {},
      names.map(name => key(kind(name), name)),
      unknown.length ? make('span', {}, `not known on some devices: ${unknown.join(', ')}`) : null,
      rows.length > shown.length
        ? make('span', {}, `the first ${shown.length} of ${rows.length} devices`)
        : null,
    ),
  );
}

function row(device) {
  const { layers, unaccounted_bytes: rest, device_bytes: size } = device.ledger;
  const known = layers.filter(layer => layer.bytes > 0);
  // The ledger goes from the outside in: what is free comes first there, and last here.
  const parts = known.map(layer => ({ name: layer.layer, bytes: layer.bytes })).reverse();
  if (rest > 0)
    parts.splice(parts.at(-1)?.name === 'free' ? -1 : parts.length, 0, {
      name: 'unaccounted',
      bytes: rest,
    });
  const sum = parts.reduce((total, part) => total + part.bytes, 0);
  const unknown = layers.filter(layer => !isKnown(layer.bytes)).map(layer => layer.layer);
  const name = device.isOnly ? `rank ${device.rank}` : `rank ${device.rank}.${device.device}`;
  // What is neither free nor unaccounted is known to be in use.
  const used = known
    .filter(layer => layer.layer !== 'free')
    .reduce((total, layer) => total + layer.bytes, 0);
  return { name, parts, unknown, sum, used, size: isKnown(size) && size > 0 ? size : null };
}

function drawn(rows, width, height) {
  const most = rows.reduce((high, found) => Math.max(high, found.size ?? 0, found.sum), 1);
  const isNarrow = width < 520;
  const right = width - (isNarrow ? 70 : 130);
  const x = scale(0, most, LEFT, right);
  const label =
    'Layers of the devices. ' +
    rows
      .map(
        found =>
          `${found.name}: ${found.parts.map(part => `${part.name} ${bytes(part.bytes)}`).join(', ')}`,
      )
      .join('. ');
  return svg(
    'svg',
    { width, height, role: 'img', 'aria-label': label },
    rows.map((found, index) => {
      const y = index * ROW;
      let at = 0;
      const bars = found.parts.map(part => {
        const from = x(at);
        at += part.bytes;
        return svg(
          'rect',
          {
            class: kind(part.name),
            x: from,
            y: y + 3,
            height: BAR,
            width: Math.max(0.5, x(at) - from),
          },
          svg('title', {}, `${found.name}: ${part.name} ${bytes(part.bytes)}`),
        );
      });
      const total = found.size && !isNarrow ? ` of ${bytes(found.size)}` : '';
      return svg(
        'g',
        {},
        text(2, y + 17, found.name),
        bars,
        text(right + 6, y + 17, `${bytes(found.used)}${total}`),
      );
    }),
  );
}
