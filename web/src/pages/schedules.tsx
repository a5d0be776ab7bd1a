import { useTitle } from "../parts";
import { Schedules } from "../workflow/schedules";

export function SchedulesPage() {
  useTitle("Schedules");
  return <Schedules heading="h1" />;
}
