// The nodes: whether their agents report, and how full their GPUs and their memory are.

import { get } from '../api.js';
import { age, chip, make, meter } from '../elements.js';
import { isKnown, plural } from '../units.js';

export const load = () => get('nodes');

export function draw({ nodes }) {
  const title = make('h1', {}, 'Nodes');
  if (nodes.length === 0) {
    return [
      title,
      make('p', {}, 'No agent has connected yet. On every GPU node:'),
      make('pre', {}, `memtape agent --coordinator ${location.origin}`),
    ];
  }
  const gone = nodes.filter(node => !node.connected).length;
  return [
    title,
    make(
      'p',
      { class: 'soft' },
      `${plural(nodes.length, 'node')}, ` + (gone ? `${gone} not connected` : 'all connected'),
    ),
    make('div', { class: 'cards' }, nodes.map(card)),
  ];
}

function card({ node, connected, version, last_report_wall_ns: last, gpus, host }) {
  const used =
    isKnown(host.memory_total_bytes) && isKnown(host.memory_available_bytes)
      ? host.memory_total_bytes - host.memory_available_bytes
      : null;
  return make(
    'article',
    { class: 'card' },
    make('h2', {}, node, ' ', chip(connected ? 'connected' : 'disconnected')),
    make(
      'p',
      { class: 'soft' },
      `agent ${version || 'of unknown version'}, last report `,
      age(last),
    ),
    meter('host memory', used, host.memory_total_bytes),
    isKnown(host.cgroup_limit_bytes)
      ? meter('cgroup of the agent', host.cgroup_bytes, host.cgroup_limit_bytes)
      : null,
    gpus.map(gpu =>
      make(
        'div',
        {},
        meter(`GPU ${gpu.index}`, gpu.used_bytes, gpu.total_bytes),
        make('p', { class: 'soft small' }, processes(gpu)),
      ),
    ),
    host.nvml_missing
      ? make('p', { class: 'soft' }, `No figures of GPUs: ${host.nvml_missing}`)
      : null,
  );
}

function processes({ processes: all, ranks, uuid }) {
  if (!isKnown(all)) return uuid;
  const own = isKnown(ranks) ? `, ${plural(ranks, 'rank')}` : '';
  return `${plural(all, 'process', 'processes')}${own}; ${uuid}`;
}
