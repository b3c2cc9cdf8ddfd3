// The types of the API's answers, by their names in openapi.json.

import type { components } from './schema';

type Schemas = components['schemas'];

export type Action = Schemas['Action'];
export type Actions = Schemas['Actions'];
export type Alternative = Schemas['Alternative'];
export type Answer = Schemas['Answer'];
export type Area = Schemas['Area'];
export type Capture = Schemas['Capture'];
export type Captures = Schemas['Captures'];
export type Changes = Schemas['Changes'];
export type Collectives = Schemas['Collectives'];
export type Device = Schemas['Device'];
export type Difference = Schemas['Difference'];
export type Differences = Schemas['Differences'];
export type Frame = Schemas['Frame'];
export type Group = Schemas['Group'];
export type Incident = Schemas['Incident'];
export type Incidents = Schemas['Incidents'];
export type Job = Schemas['Job'];
export type Jobs = Schemas['Jobs'];
export type Kept = Schemas['Kept'];
export type KeptLine = Schemas['KeptLine'];
export type Line = Schemas['Line'];
export type Lines = Schemas['Lines'];
export type MapBlock = Schemas['MapBlock'];
export type MapSegment = Schemas['MapSegment'];
export type MergedBlocks = Schemas['MergedBlocks'];
export type Node = Schemas['Node'];
export type Nodes = Schemas['Nodes'];
export type Part = Schemas['Part'];
export type Rank = Schemas['Rank'];
export type Ranks = Schemas['Ranks'];
export type Segments = Schemas['Segments'];
export type Series = Schemas['Series'];
export type SourceLines = Schemas['SourceLines'];
export type Suspect = Schemas['Suspect'];
export type ThreadEntry = Schemas['ThreadEntry'];
/** A field that is left out stays as it is. */
export type ThreadRequest = Partial<Schemas['ThreadRequest']>;
export type WhoAmI = Schemas['WhoAmI'];
