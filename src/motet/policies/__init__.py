"""The policies that can take a seat: named by users, loaded from runs, joint, teams, scripted."""
