// Ranks of a job: one of them by its number, its peers, its main device. Pure.

import type { Device, Rank, Ranks } from './types';

export const rankIn = (ranks: Ranks | null | undefined, rank: number): Rank | null =>
  ranks?.ranks.find(row => row.rank === rank) ?? null;

/** The device of a rank that holds most. */
export const mainDevice = ({ devices }: Rank): Device | null =>
  devices.reduce<Device | null>(
    (most, device) => (most && most.allocated_bytes >= device.allocated_bytes ? most : device),
    null,
  );

/** Bytes of a device of a rank, or of its main one; null where that is not known. */
export function deviceBytes(rank: Rank | null, device: number | null = null): number | null {
  const found = rank?.devices.find(of => of.device === device) ?? (rank && mainDevice(rank));
  return found?.device_bytes || found?.ledger.device_bytes || null;
}

/** At most `most` ranks of the same role, those with the nearest numbers. */
export function peersOf(ranks: Ranks | null, rank: number, most: number): Rank[] {
  const own = rankIn(ranks, rank);
  const same = (ranks?.ranks ?? []).filter(row => row.rank !== rank && row.role === own?.role);
  return same
    .sort((a, b) => Math.abs(a.rank - rank) - Math.abs(b.rank - rank))
    .slice(0, most);
}
