// The types of the API's answers, by their names in openapi.json.

import type { components } from './schema';

type Schemas = components['schemas'];

export type Action = Schemas['Action'];
export type Actions = Schemas['Actions'];
export type Alternative = Schemas['Alternative'];
export type Capture = Schemas['Capture'];
export type Captures = Schemas['Captures'];
export type Collectives = Schemas['Collectives'];
export type Device = Schemas['Device'];
export type Frame = Schemas['Frame'];
export type Incident = Schemas['Incident'];
export type Incidents = Schemas['Incidents'];
export type Job = Schemas['Job'];
export type Jobs = Schemas['Jobs'];
export type Kept = Schemas['Kept'];
export type KeptLine = Schemas['KeptLine'];
export type Line = Schemas['Line'];
export type Lines = Schemas['Lines'];
export type Node = Schemas['Node'];
export type Nodes = Schemas['Nodes'];
export type Part = Schemas['Part'];
export type Rank = Schemas['Rank'];
export type Series = Schemas['Series'];
export type Suspect = Schemas['Suspect'];
export type WhoAmI = Schemas['WhoAmI'];

// Until the document has them.
export interface AccountColumns {
  name: string;
  unit: string;
  source: string;
  lowest: number[];
  highest: number[];
  known_from_step: number | null;
  unknown: string | null;
  limit_bytes: number | null;
}
export interface Area {
  job: string;
  attempt: number;
  account: string;
  unit: string;
  source: string;
  base: number;
  scale: number;
  first_step: number;
  steps_per_column: number;
  medians: (number | null)[];
  rows: { first_rank: number; last_rank: number; extreme_rank: number | null; cells: (number | null)[] }[];
  known_from_step: number | null;
  unknown: string | null;
  is_cut: boolean;
  steps_left_out: number;
}
export type AccountSeries = Series & { account?: AccountColumns | null };
export type Ranks = Schemas['Ranks'] & { count: number; alive: number };
