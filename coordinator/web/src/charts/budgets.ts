// The budgets of a rank: each device, and the host. The parts of each add up to what there is; what
// is not known of a part is named, never counted as 0. Pure.

import type { Device, Rank } from '../types';
import { isKnown } from '../units';

/** A part of a budget: its class in the style sheet, and the account that shows it over steps. */
export interface BudgetPart {
  name: string;
  bytes: number;
  kind: string;
  account: string;
}

export interface Budget {
  name: string;
  rank: number;
  parts: BudgetPart[];
  /** Parts whose bytes are not known. */
  unknown: string[];
  /** Bytes that are neither free nor unaccounted. */
  used: number;
  sum: number;
  /** Size of the device, or limit of the cgroup; null where there is none or it is not known. */
  size: number | null;
}

const FREE = 'free';
const UNACCOUNTED = 'unaccounted';
/** Where the free bytes are not known, they are within what is unaccounted. */
const FREE_OR_NOT = 'free or unaccounted';

// Devices and hosts share a legend: parts of one kind are the same bytes by two names. A layer of a
// newer coordinator looks as what is unaccounted.
const KINDS: Record<string, [kind: string, account: string]> = {
  requested: ['layer-0', 'allocated'],
  'in use by tensors': ['layer-0', 'allocated'],
  rounding: ['layer-1', 'allocated'],
  'pending frees': ['layer-2', 'deferred'],
  cached: ['layer-3', 'reserved'],
  'unused by tensors': ['layer-3', 'reserved'],
  'inactive split': ['layer-4', 'reserved'],
  'other code': ['layer-5', 'non_torch'],
  NCCL: ['layer-6', 'non_torch'],
  'other processes': ['layer-7', 'other'],
  [FREE]: ['layer-free', 'reserved'],
  private: ['host-0', 'host'],
  pinned: ['host-1', 'pinned'],
  'shared memory': ['host-2', 'shared'],
  'worker processes': ['host-3', 'workers'],
  files: ['host-4', 'host'],
  'others in its cgroup': ['host-5', 'host'],
};

function part(name: string, bytes: number): BudgetPart {
  const [kind, account] = KINDS[name] ?? ['layer-rest', 'non_torch'];
  return { name, bytes, kind, account };
}

/** The kinds of these budgets, each once, with the names of their parts. */
export function legendOf(budgets: Budget[]): [kind: string, names: string][] {
  const found = new Map<string, Set<string>>();
  for (const { kind, name } of budgets.flatMap(of => of.parts)) {
    found.set(kind, (found.get(kind) ?? new Set()).add(name));
  }
  return [...found].map(([kind, names]) => [kind, [...names].join(' or ')]);
}

export const budgetsOf = (rank: Rank): Budget[] => [
  ...rank.devices.map(device => ofDevice(rank, device, rank.devices.length > 1)),
  ...ofHost(rank),
];

function ofDevice(
  { rank, end }: Rank,
  { ledger, device }: Device,
  isOneOfSeveral: boolean,
): Budget {
  const { layers, unaccounted_bytes: rest, device_bytes: size } = ledger;
  // The ledger goes from the outside in: what is free comes first there, and last here.
  const parts = layers.flatMap(of => (of.bytes ? [part(of.layer, of.bytes)] : [])).reverse();
  const unknown = layers.filter(layer => !isKnown(layer.bytes)).map(layer => layer.layer);
  if (rest && rest > 0) {
    const name = unknown.includes(FREE) ? FREE_OR_NOT : UNACCOUNTED;
    parts.splice(parts.at(-1)?.name === FREE ? -1 : parts.length, 0, part(name, rest));
  }
  // A rank that has ended holds nothing: these are its last bytes.
  const name = `${end ? '■ ' : ''}rank ${rank}${isOneOfSeveral ? `.${device}` : ''}`;
  return budget(name, rank, parts, unknown, size);
}

/** The host's memory of a rank and its workers, within its cgroup where it has one. */
function ofHost({ rank, host, pinned_bytes: pinned }: Rank): Budget[] {
  if (!host || !isKnown(host.anon_bytes)) return [];
  // What cudaHostAlloc gives is shared memory to the kernel.
  const shared = isKnown(host.shmem_bytes) ? Math.max(0, host.shmem_bytes - (pinned ?? 0)) : null;
  const amounts: [string, number | null][] = [
    ['private', host.anon_bytes],
    ['pinned', pinned],
    ['shared memory', shared],
    ['worker processes', host.workers?.anon_bytes ?? null],
    ['files', host.file_bytes],
  ];
  const parts = amounts.flatMap(([name, bytes]) => (bytes ? [part(name, bytes)] : []));
  const unknown = amounts.filter(([, bytes]) => !isKnown(bytes)).map(([name]) => name);
  const { bytes, limit_bytes: limit } = host.cgroup ?? { bytes: null, limit_bytes: null };
  if (isKnown(bytes) && isKnown(limit)) {
    const others = bytes - sumOf(parts);
    if (others > 0) parts.push(part('others in its cgroup', others));
    const free = limit - sumOf(parts);
    if (free > 0) parts.push(part(FREE, free));
  }
  return [budget(`host of ${rank}`, rank, parts, unknown, limit)];
}

const sumOf = (parts: BudgetPart[]) => parts.reduce((sum, of) => sum + of.bytes, 0);

function budget(
  name: string,
  rank: number,
  parts: BudgetPart[],
  unknown: string[],
  size: number | null,
): Budget {
  const rest = [FREE, UNACCOUNTED, FREE_OR_NOT];
  const used = sumOf(parts.filter(of => !rest.includes(of.name)));
  return { name, rank, parts, unknown, used, sum: sumOf(parts), size: size || null };
}
