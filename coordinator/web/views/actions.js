// The decisions about all jobs and nodes.

import { get } from '../api.js';
import { make } from '../elements.js';
import { actionTable } from './parts.js';

export const load = () => get('actions');

export const draw = ({ actions }) => [
  make('h1', {}, 'Actions'),
  make('p', { class: 'soft' }, 'What was decided about jobs and nodes, and what came of it.'),
  actionTable(actions),
];
