// The decisions about all jobs and nodes.

import { useAnswer } from '../answers';
import { paths } from '../api';
import { ActionTable } from '../parts/action_table';
import { Soft } from '../parts/basics';
import { Missing } from '../parts/missing';
import { useTitle } from '../title';
import type { Actions } from '../types';

export function ActionsView() {
  const { data, error } = useAnswer<Actions>(paths.actions);
  useTitle('Actions');
  if (!data) return <Missing view="actions" id="" error={error} />;
  return (
    <>
      <h1>Actions</h1>
      <Soft>Decisions about jobs and nodes, newest first, with their outcomes.</Soft>
      <ActionTable actions={data.actions} />
    </>
  );
}
